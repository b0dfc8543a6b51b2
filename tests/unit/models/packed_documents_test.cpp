// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/text_encoder.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_packed_documents {
namespace {

constexpr int64_t E = 32, H = 4, G = 2, D = 8, V = 50, L = 13;
constexpr double kTolerance = 1e-12;

struct Document {
  int64_t row, first, length;
};

/// The documents that two rows of L tokens are made of.
std::vector<Document> documents() {
  return {{0, 0, 5}, {0, 5, 1}, {0, 6, 7}, {1, 0, 4}, {1, 4, 9}};
}

/// The document and the position of each token. The first of each has position `first_position`.
TransformerInputs packed_inputs(int64_t first_position = 0) {
  std::vector<at::Tensor> ids, positions;
  for (const auto& document : documents()) {
    ids.push_back(at::full({document.length}, 3 * document.first, at::kLong));
    positions.push_back(at::arange(first_position, first_position + document.length));
  }
  const auto rows = [](const std::vector<at::Tensor>& parts) {
    return at::cat(parts).view({2, L});
  };
  return TransformerInputs().documents(rows(ids)).positions(rows(positions));
}

/// Compares packed documents with each document alone: outputs and the gradients of all parameters.
template <typename Model>
void expect_as_alone(Model model, const TransformerInputs& inputs = packed_inputs()) {
  model->to(at::kDouble);
  model->train();
  const auto tokens = at::randint(2, V, {2, L}, at::kLong);  // TextEncoder's padding is token 1
  const auto packed = model->forward(tokens, inputs);
  const auto weight = uniform(packed.sizes(), at::kDouble);
  auto sum = at::zeros({}, at::kDouble);
  for (const auto& document : documents()) {
    const auto own = [&](const at::Tensor& rows) {
      return rows.narrow(0, document.row, 1).narrow(1, document.first, document.length);
    };
    const auto alone = model->forward(own(tokens));
    EXPECT_TRUE(is_close(own(packed), alone, kTolerance));
    sum = sum + (alone * own(weight)).sum();
  }
  const auto parameters = model->parameters();
  EXPECT_TRUE(are_close(torch::autograd::grad({(packed * weight).sum()}, parameters),
                        torch::autograd::grad({sum}, parameters), 1e-11));
}

PositionEmbeddingOptions learned_positions() {
  return PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(12);
}

/// Blocks with each kind of rotary embedding, and one without.
std::vector<TransformerBlockOptions> all_blocks() {
  auto longrope = llama_options(E, H, G);
  longrope.attention().rotary()->scaling(
      LongRopeScaling({1.0, 1.5, 2.0, 3.0}, {3.0, 4.0, 5.0, 6.0}, /*original_length=*/6));
  auto dynamic = llama_options(E, H, G);
  dynamic.attention().rotary()->scaling(NtkScaling(4.0).original_length(4));
  auto window = llama_options(E, H, G);
  window.attention().left_window(2);
  auto alibi = block_options(E, H, G);
  alibi.attention().alibi(true);
  return {block_options(E, H, G), llama_options(E, H, G), longrope, dynamic, window, alibi};
}

TEST(PackedDocuments, TrainADecoderAsEachAlone) {
  torch::manual_seed(moved(1));
  for (const auto& block : all_blocks()) {
    for (const bool checkpointing : {false, true}) {
      DecoderOptions options(V, block, /*num_layers=*/2);
      options.stack().checkpointing(checkpointing);
      expect_as_alone(Decoder(options));
    }
  }
  const DecoderOptions plain(V, block_options(E, H, G), /*num_layers=*/2);
  expect_as_alone(Decoder(DecoderOptions(plain).positions(learned_positions())));
  expect_as_alone(Decoder(DecoderOptions(plain).positions(PositionEmbeddingOptions(E))));
}

TEST(PackedDocuments, TrainATextEncoderAsEachAlone) {
  torch::manual_seed(moved(2));
  for (const auto& block : all_blocks()) {
    for (const bool checkpointing : {false, true}) {
      auto stack = EncoderOptions(block, /*num_layers=*/2).checkpointing(checkpointing);
      const TextEncoderOptions options(V, stack);
      expect_as_alone(TextEncoder(options));
      expect_as_alone(TextEncoder(TextEncoderOptions(options).positions(learned_positions())));
    }
  }
  // RoBERTa's first token stands at position 2.
  const EncoderOptions stack(block_options(E, H, H), /*num_layers=*/2);
  const auto roberta = TextEncoderOptions(V, stack).positions(learned_positions()).padding_token(1);
  expect_as_alone(TextEncoder(roberta), packed_inputs(/*first_position=*/2));
}

TEST(PackedDocuments, HaveTheWeightsOfEachAlone) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2).positions(learned_positions()));
  model->to(at::kDouble);
  const auto tokens = at::randint(V, {2, L}, at::kLong);
  const auto [scores, weights] = model->forward_with_weights(tokens, packed_inputs());
  EXPECT_TRUE(is_close(scores, model->forward(tokens, packed_inputs()), kTolerance));
  for (const auto& [row, first, length] : documents()) {
    const auto alone =
        model->forward_with_weights(tokens.narrow(0, row, 1).narrow(1, first, length));
    for (size_t i = 0; i < 2; ++i) {
      const auto own = weights[i].self[row].narrow(1, first, length).narrow(2, first, length);
      EXPECT_TRUE(is_close(own, std::get<1>(alone)[i].self[0], kTolerance));
    }
  }
}

Encoder made_encoder(const EncoderOptions& options) {
  Encoder encoder(options);
  encoder->to(at::kDouble);
  return encoder;
}

/// Blocks with two rotary embeddings and, between them, one without.
EncoderOptions mixed_stack() {
  auto other = llama_options(E, H, G);
  other.attention().rotary()->base(500.0);
  auto without = llama_options(E, H, G);
  without.attention().rotary(std::nullopt);
  return EncoderOptions({llama_options(E, H, G), without, other, llama_options(E, H, G)});
}

/// The blocks of an encoder one after the other, each with the inputs that `of` returns for it.
at::Tensor in_turn(Encoder encoder, const at::Tensor& x,
                   const std::function<TransformerInputs(const TransformerBlockImpl&)>& of) {
  auto result = x;
  for (const auto& block : *encoder->blocks) {
    auto& own = *block->as<TransformerBlockImpl>();
    result = own.forward(result, of(own));
  }
  return encoder->final_norm(result);
}

TEST(Encoder, GivesEachRotaryEmbeddingItsAngles) {
  torch::manual_seed(moved(4));
  auto encoder = made_encoder(mixed_stack());
  const auto x = uniform({2, L, E}, at::kDouble);
  const auto positions = at::arange(2 * L).view({2, L}).remainder(7);
  const auto given = TransformerInputs().positions(positions);
  const auto expected = in_turn(encoder, x, [&](const TransformerBlockImpl&) { return given; });
  EXPECT_TRUE(encoder->forward(x, given).equal(expected));
  EXPECT_FALSE(is_close(encoder->forward(x), expected, 1e-9));
  // Angles of the caller's own are given to all blocks that rotate.
  const auto numbers = uniform({2, 1, L, D / 2}, at::kDouble);
  const auto angles = TransformerInputs().rotary_angles(RotaryAngles{numbers.cos(), numbers.sin()});
  const auto turned = in_turn(encoder, x, [&](const TransformerBlockImpl& block) {
    return block.attention->rotary ? angles : TransformerInputs();
  });
  EXPECT_TRUE(encoder->forward(x, angles).equal(turned));
  EXPECT_TRUE(encoder->forward(x, TransformerInputs(angles).positions(positions)).equal(turned));
}

TEST(Encoder, ComputesInputsAgainInTheBackwardPass) {
  torch::manual_seed(moved(5));
  auto encoder = made_encoder(mixed_stack());
  const auto x = uniform({2, L, E}, at::kDouble);
  const auto angles = uniform({1, 1, L, D / 2}, at::kDouble).requires_grad_();
  const auto bias = uniform({H, 5}, at::kDouble).requires_grad_();
  const auto lengths = at::full({2}, L, at::kLong);
  const auto gradients = [&](bool checkpointing) {
    encoder->options.checkpointing(checkpointing);
    const auto inputs = TransformerInputs(random_mask({2, 1, L, L}))
                            .documents(at::arange(L).floor_divide(4))
                            .rotary_angles(RotaryAngles{angles.cos(), angles.sin()})
                            .query_lengths(lengths)
                            .key_lengths(lengths)
                            .global_tokens(at::arange(L).lt(2))
                            .relative_bias(bias * 2.0)
                            .relative_positions(at::arange(L).remainder(5));
    auto leaves = encoder->parameters();
    leaves.insert(leaves.end(), {angles, bias});
    return torch::autograd::grad({encoder->forward(x, inputs).square().sum()}, leaves);
  };
  torch::manual_seed(moved(6));
  const auto expected = gradients(false);
  torch::manual_seed(moved(6));
  EXPECT_TRUE(are_close(gradients(true), expected, 1e-10));
  for (const auto& gradient : expected) EXPECT_TRUE(is_finite(gradient));
}

TEST(Encoder, RefusesChangesOfPackedDocuments) {
  torch::manual_seed(moved(7));
  auto encoder = made_encoder(EncoderOptions(llama_options(E, H, G), 2).checkpointing(true));
  const auto x = uniform({2, L, E}, at::kDouble);
  const auto documents = at::zeros({L}, at::kLong), positions = at::arange(L);
  const auto cos = uniform({1, 1, L, D / 2}, at::kDouble);
  const auto changed = [&](const at::Tensor& tensor, bool gives_angles = false) {
    auto inputs = TransformerInputs().documents(documents).positions(positions);
    if (gives_angles) inputs.rotary_angles(RotaryAngles{cos, cos});
    const auto output = encoder->forward(x, inputs);
    tensor.add_(1);
    return value_error([&] { output.sum().backward(); });
  };
  const std::string kRule =
      " must not be changed in place before the backward pass, which computes with it again";
  EXPECT_EQ(changed(documents), "Encoder: documents" + kRule);
  EXPECT_EQ(changed(positions), "Encoder: positions" + kRule);
  EXPECT_EQ(changed(cos, true), "Encoder: rotary_angles" + kRule);
}

TEST(Encoder, RefusesPositionsThatDoNotFit) {
  auto encoder = made_encoder(EncoderOptions(llama_options(E, H, G), 2));
  auto without = made_encoder(EncoderOptions(block_options(E, H, G), 2));
  const auto x = at::zeros({2, L, E}, at::kDouble);
  const auto error = [&](Encoder& stack, const TransformerInputs& inputs) {
    return value_error([&] { stack->forward(x, inputs); });
  };
  const auto ones = at::ones({1, 1, L, D / 2});
  EXPECT_EQ(error(encoder, TransformerInputs().positions(at::arange(3))),
            "Encoder: positions [3] must be [L], [B, L] or [B or 1, L, axes]; x [2, 13, 32]");
  EXPECT_EQ(
      error(without, TransformerInputs().positions(at::arange(3))),
      "GroupQueryAttention: positions [3] must be [L], [B, L] or [B or 1, L, axes]; x [2, 13, 32]");
  EXPECT_EQ(error(without, TransformerInputs().rotary_angles(RotaryAngles{ones, ones})),
            "Encoder: rotary_angles must be absent: no block has a rotary embedding");
  Decoder decoder(DecoderOptions(V, block_options(E, H, G), 1).positions(learned_positions()));
  EXPECT_ERROR(
      "PositionEmbedding: positions (1 to 13) must be at least 0 and below max_length (12)",
      decoder->forward(at::zeros({2, L}, at::kLong),
                       TransformerInputs().positions(at::arange(L) + 1)));
}

/// The scores of forward_cached, two tokens a call, with angles [B, 1, L, R / 2] if they are given.
at::Tensor in_pairs(const Decoder& model, const at::Tensor& tokens, TransformerInputs inputs) {
  auto caches = model->make_caches(2, L);
  const auto angles = inputs.rotary_angles();
  std::vector<at::Tensor> scores;
  for (int64_t first = 0; first < L; first += 2) {
    const auto count = std::min<int64_t>(2, L - first);
    if (angles) {
      inputs.rotary_angles(
          RotaryAngles{angles->cos.narrow(2, first, count), angles->sin.narrow(2, first, count)});
    }
    scores.push_back(model->forward_cached(tokens.narrow(1, first, count), caches, {}, inputs));
  }
  return at::cat(scores, 1);
}

TEST(CachedDecoder, TakesARelativeBiasAndRotaryAngles) {
  torch::manual_seed(moved(8));
  const at::NoGradGuard no_grad;
  auto options = llama_options(E, H, G);
  const auto bias = uniform({H, 9}, at::kDouble), angles = uniform({2, 1, L, D / 2}, at::kDouble);
  const auto inputs = TransformerInputs().relative_bias(bias).rotary_angles(
      RotaryAngles{angles.cos(), angles.sin()});
  const auto tokens = at::randint(V, {2, L}, at::kLong);
  for (const bool slides : {false, true}) {
    if (slides) options.attention().left_window(3);
    Decoder model(DecoderOptions(V, options, 2).positions(learned_positions().max_length(L)));
    model->to(at::kDouble);
    const auto expected = model->forward(tokens, inputs);
    EXPECT_FALSE(is_close(model->forward(tokens), expected, 1e-3));
    EXPECT_TRUE(is_close(in_pairs(model, tokens, inputs), expected, kTolerance));
    auto paged = model->make_paged_cache(/*pages=*/4);
    EXPECT_EQ(paged.options().window(), slides ? std::optional<int64_t>(4) : std::nullopt);
    auto step = paged.append({paged.add()}, {L});
    auto own = inputs;
    own.rotary_angles(RotaryAngles{angles[1].unsqueeze(0).cos(), angles[1].unsqueeze(0).sin()});
    EXPECT_TRUE(is_close(model->forward_cached(tokens[1].unsqueeze(0), step, false, own)[0],
                         expected[1], kTolerance));
  }
}

TEST(CachedDecoder, RefusesPackedDocuments) {
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  const at::NoGradGuard no_grad;
  const auto tokens = at::zeros({2, L}, at::kLong), numbers = at::zeros({L}, at::kLong);
  auto caches = model->make_caches(2, L);
  EXPECT_ERROR("TransformerBlock: documents must be absent with a cache",
               model->forward_cached(tokens, caches, {}, TransformerInputs().documents(numbers)));
  EXPECT_ERROR("TransformerBlock: positions must be absent with a cache",
               model->forward_cached(tokens, caches, {}, TransformerInputs().positions(numbers)));
  for (const auto& cache : caches) EXPECT_EQ(cache.lengths(), std::vector<int64_t>(2, 0));
  auto paged = model->make_paged_cache(/*pages=*/1);
  auto step = paged.append({paged.add()}, {L});
  EXPECT_ERROR("TransformerBlock: positions must be absent with a cache",
               model->forward_cached(tokens.narrow(0, 0, 1), step, false,
                                     TransformerInputs().positions(numbers)));
}

}  // namespace
}  // namespace heed::test::of_packed_documents
