// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/context_parallel.h>
#include <heed/text_encoder.h>
#include <heed/transformer.h>
#include <torch/utils.h>

#include <memory>

#include "distributed/processes.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_context {
namespace {

using distributed::shard_sequence;

heed::Decoder make_decoder(bool learned_positions) {
  auto attention = GroupQueryAttentionOptions(16, 4, 2).causal(true).dropout(0.3);
  if (!learned_positions) attention.rotary(RotaryEmbeddingOptions(4));
  const auto block = TransformerBlockOptions(attention).norm(NormKind::rms_norm);
  auto options = DecoderOptions(/*vocab_size=*/11, block, /*num_layers=*/2);
  if (learned_positions) {
    options.positions(PositionEmbeddingOptions(16).kind(PositionKind::learned).max_length(64));
  }
  return Decoder(options);
}

/// Documents of five tokens, from whose middle some rows begin, and the positions in them.
TransformerInputs packed_inputs(int64_t batch, int64_t length) {
  const auto index = at::arange(length).unsqueeze(0) + at::arange(batch).unsqueeze(1);
  return TransformerInputs().documents(index.floor_divide(5)).positions(index.remainder(5));
}

/// This process's share of a row's tokens.
at::Tensor own_tokens(const at::Tensor& rows, const ProcessGroup& group) {
  return shard_sequence(rows, 1, group);
}

TransformerInputs own_inputs(TransformerInputs inputs, const ProcessGroup& group) {
  for (auto* rows : {&inputs.documents(), &inputs.positions()}) {
    if (*rows) *rows = own_tokens(**rows, group);
  }
  return inputs;
}

void expect_trained_as_one_process(bool learned_positions, const TransformerInputs& inputs,
                                   distributed::SequenceExchange exchange,
                                   const ProcessGroup& group) {
  torch::manual_seed(moved(1));
  auto whole = make_decoder(learned_positions);
  auto shared = std::dynamic_pointer_cast<DecoderImpl>(whole->clone());
  for (auto* model : {whole.get(), shared.get()}) model->to(at::kDouble);
  distributed::share_sequence(*shared, group, exchange);
  const auto all = at::randint(11, {3, 17}, at::kLong);
  const auto loss = [](DecoderImpl& model, const at::Tensor& x, const at::Tensor& y,
                       const TransformerInputs& given) {
    torch::manual_seed(moved(9));  // dropout
    return model.loss(x, y, given);
  };
  const auto tokens = all.narrow(1, 0, 16), targets = all.narrow(1, 1, 16);
  const auto expected = loss(*whole, tokens, targets, inputs);
  expected.backward();
  const auto own = loss(*shared, own_tokens(tokens, group), own_tokens(targets, group),
                        own_inputs(inputs, group));
  own.backward();
  EXPECT_TRUE(is_close(sum_over_processes(own.detach(), group) / 2, expected, 1e-12));
  const auto parameters = whole->named_parameters();
  for (const auto& parameter : shared->named_parameters()) {
    const auto mean = sum_over_processes(parameter.value().grad(), group) / 2;
    EXPECT_TRUE(is_close(mean, parameters[parameter.key()].grad(), 1e-12)) << parameter.key();
  }
  distributed::share_sequence(*shared, {});
  EXPECT_TRUE(is_close(loss(*shared, tokens, targets, inputs), expected, 1e-12));
}

TEST(ContextParallel, TrainsADecoderAsOneProcess) {
  using distributed::SequenceExchange;
  for (const auto exchange : {SequenceExchange::ring, SequenceExchange::ulysses}) {
    in_processes(2, [&](const ProcessGroup& group) {
      for (const bool learned_positions : {false, true}) {
        expect_trained_as_one_process(learned_positions, {}, exchange, group);
        expect_trained_as_one_process(learned_positions, packed_inputs(3, 16), exchange, group);
      }
    });
  }
}

TEST(ContextParallel, EncodesTextAsOneProcess) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(11));
    const auto positions = PositionEmbeddingOptions(16).kind(PositionKind::learned).max_length(16);
    const EncoderOptions stack(GroupQueryAttentionOptions(16, 4, 2), /*num_layers=*/2);
    const auto options = TextEncoderOptions(/*vocab_size=*/11, stack).positions(positions);
    TextEncoder encoder(options), counted(TextEncoderOptions(options).padding_token(1));
    encoder->to(at::kDouble);
    const auto tokens = at::randint(11, {3, 16}, at::kLong);
    for (const auto& inputs : {TransformerInputs(), packed_inputs(3, 16)}) {
      distributed::share_sequence(*encoder, {});
      const auto whole = encoder->forward(tokens, inputs);
      distributed::share_sequence(*encoder, group);
      const auto own = encoder->forward(own_tokens(tokens, group), own_inputs(inputs, group));
      EXPECT_TRUE(is_close(own, own_tokens(whole, group), 1e-12));
    }
    distributed::share_sequence(*counted, group);
    EXPECT_ERROR(
        "TextEncoder: positions must be given where processes share the sequence: those of "
        "padding_token (1) count all tokens",
        counted->forward(own_tokens(tokens, group)));
  });
}

/// A share of a sequence does not tell the lengths of documents.
TEST(ContextParallel, TakesRotaryAnglesOfItsOwnTokens) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(12));
    const auto rotary = RotaryEmbeddingOptions(4).scaling(NtkScaling(4.0).original_length(3));
    const auto attention = GroupQueryAttentionOptions(16, 4, 2).causal(true).rotary(rotary);
    Encoder encoder(EncoderOptions(attention, /*num_layers=*/2));
    encoder->to(at::kDouble);
    const auto x = uniform({3, 16, 16}, at::kDouble);
    const auto inputs = packed_inputs(3, 16);
    const auto whole = encoder->forward(x, inputs);
    distributed::share_sequence(*encoder, group);
    const auto own_x = shard_sequence(x, 1, group);
    auto own = own_inputs(inputs, group);
    EXPECT_ERROR(
        "Encoder: positions must be absent where processes share the sequence and its length "
        "changes the rotary frequencies: pass rotary_angles",
        encoder->forward(own_x, own));
    // Only the last document of each row is shorter than five tokens.
    const auto lengths = at::full({3, 16}, 5, at::kLong);
    for (int64_t row = 0; row < 3; ++row) lengths[row].narrow(0, 15 - row, row + 1).fill_(row + 1);
    const auto& embedding = encoder->blocks->ptr<TransformerBlockImpl>(0)->attention->rotary;
    const auto angles = embedding->angles(*inputs.positions(), lengths, at::kDouble);
    own.rotary_angles(
        RotaryAngles{shard_sequence(angles.cos, 2, group), shard_sequence(angles.sin, 2, group)});
    EXPECT_TRUE(is_close(encoder->forward(own_x, own), shard_sequence(whole, 1, group), 1e-12));
  });
}

}  // namespace
}  // namespace heed::test::of_context
