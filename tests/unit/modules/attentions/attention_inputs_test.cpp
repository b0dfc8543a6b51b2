// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attention_inputs.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "unit/modules/attentions/small_attention.h"

namespace heed::test::of_attention_inputs {
namespace {

/// Which keys queries see and what is added to their scores, both broadcast to [B, H, L, L]; and
/// the angles that rotate both.
struct Scores {
  explicit Scores(at::Tensor seen = at::ones({1, 1, 1, 1}, at::kBool),
                  at::Tensor added = at::zeros({1, 1, 1, 1}, at::kDouble),
                  std::optional<RotaryAngles> angles = {})
      : seen(std::move(seen)), added(std::move(added)), angles(std::move(angles)) {}
  at::Tensor seen, added;
  std::optional<RotaryAngles> angles;
};

at::Tensor rotated(const at::Tensor& heads, const RotaryAngles& angles) {
  const auto half = heads.size(3) / 2;
  const auto a = heads.narrow(3, 0, half), b = heads.narrow(3, half, half);
  return at::cat({a * angles.cos - b * angles.sin, b * angles.cos + a * angles.sin}, 3);
}

/// {output, weights} of self-attention as the definition reads, with operators of LibTorch.
std::pair<at::Tensor, at::Tensor> expected(GroupQueryAttention module, const at::Tensor& x,
                                           const Scores& scores) {
  const auto turned = [&](const at::Tensor& heads) {
    return scores.angles ? rotated(heads, *scores.angles) : heads;
  };
  const auto query = turned(split_heads(module->fc_q(x), H));
  const auto key = turned(split_heads(module->fc_k(x), G));
  const auto per_head = [](const at::Tensor& heads) { return heads.repeat_interleave(H / G, 1); };
  const auto value = per_head(split_heads(module->fc_v(x), G));
  const auto plain = query.matmul(per_head(key).transpose(2, 3)) / std::sqrt(D) + scores.added;
  const auto weights =
      plain.masked_fill(scores.seen.logical_not(), -1e300).softmax(-1) * scores.seen;
  return {module->fc_o(merge_heads(weights.matmul(value))), weights};
}

/// Compares output, weights and gradients, also those of `leaves`, which the inputs are made of.
void expect_attention(GroupQueryAttention module, const AttentionInputs& inputs,
                      const Scores& scores, std::vector<at::Tensor> leaves = {}) {
  const auto x = uniform({B, L, E}, at::kDouble).requires_grad_();
  leaves.push_back(x);
  for (const auto& parameter : module->parameters()) leaves.push_back(parameter);
  const auto [output, weights] = expected(module, x, scores);
  const auto actual = module->forward(x, inputs);
  EXPECT_TRUE(is_close(actual, output, kTolerance));
  const auto [with_weights, own_weights] = module->forward_with_weights(x, inputs);
  EXPECT_TRUE(is_close(with_weights, output, kTolerance));
  EXPECT_TRUE(is_close(own_weights, weights, kTolerance));
  const auto gradient = uniform({B, L, E}, at::kDouble);
  EXPECT_TRUE(are_close(torch::autograd::grad({actual}, leaves, {gradient}),
                        torch::autograd::grad({output}, leaves, {gradient}), 1e-11));
}

/// j - i of query i and key j: [1, 1, L, L].
at::Tensor distances() {
  const auto index = at::arange(L);
  return (index.unsqueeze(0) - index.unsqueeze(1)).view({1, 1, L, L});
}

/// bias[h, clamp(d, -R, R) + R] of distances d [1, 1, L, L]: [1, H, L, L].
at::Tensor looked_up(const at::Tensor& bias, const at::Tensor& distances) {
  const auto most = bias.size(1) / 2;
  const auto index = distances.clamp(-most, most) + most;
  return bias.index_select(1, index.flatten()).view({1, H, L, L});
}

TEST(AttentionInputs, HaveMasksAndBiases) {
  torch::manual_seed(moved(1));
  auto module = made(plain_options());
  const auto bias = uniform({1, H, L, L}, at::kDouble).requires_grad_();
  const auto mask = random_mask({B, 1, L, L});
  expect_attention(module, AttentionInputs(mask).bias(bias), Scores(mask, bias), {bias});
  expect_attention(module, mask, Scores(mask));
  expect_attention(module, std::optional<at::Tensor>(mask), Scores(mask));
  expect_attention(module, std::nullopt, Scores());
  expect_attention(module, {}, Scores());
}

TEST(AttentionInputs, HaveAMaskOfFewerBatches) {
  torch::manual_seed(moved(2));
  auto module = made(plain_options());
  const auto mask = random_mask({2, 1, L, L});
  expect_attention(module, AttentionInputs(mask).mask_batch(MaskBatch::cycled),
                   Scores(mask.repeat({2, 1, 1, 1})));
  expect_attention(module, AttentionInputs(mask).mask_batch(MaskBatch::repeated),
                   Scores(mask.repeat_interleave(2, 0)));
}

TEST(AttentionInputs, HaveDocuments) {
  torch::manual_seed(moved(3));
  const auto documents =
      at::tensor({4, 4, 1, 1, 1, 4, 9}).unsqueeze(0) * at::arange(B).view({B, 1});
  const auto seen = document_pairs(documents, documents);
  expect_attention(made(plain_options()), AttentionInputs().documents(documents), Scores(seen));
  auto causal = made(plain_options().causal(true));
  expect_attention(causal, AttentionInputs().documents(documents),
                   Scores(seen.logical_and(distances().le(0))));
}

TEST(AttentionInputs, HaveLengths) {
  torch::manual_seed(moved(4));
  const auto lengths = at::tensor({L, int64_t{3}, int64_t{0}, int64_t{5}});
  const auto exists = at::arange(L).unsqueeze(0).lt(lengths.unsqueeze(1));  // [B, L]
  const auto seen = exists.view({B, 1, L, 1}).logical_and(exists.view({B, 1, 1, L}));
  const auto inputs = AttentionInputs().query_lengths(lengths).key_lengths(lengths);
  expect_attention(made(plain_options()), inputs, Scores(seen));
  expect_attention(made(plain_options().causal(true)), inputs,
                   Scores(seen.logical_and(distances().le(0))));
}

TEST(AttentionInputs, HaveGlobalTokens) {
  torch::manual_seed(moved(5));
  const auto tokens = at::tensor({1, 0, 0, 0, 1, 0, 0}).to(at::kBool);
  auto module = made(plain_options().left_window(2).right_window(0));
  const auto near = distances().ge(-2).logical_and(distances().le(0));
  expect_attention(module, {}, Scores(near));
  const auto any = tokens.view({L, 1}).logical_or(tokens.view({1, L}));
  expect_attention(module, AttentionInputs().global_tokens(tokens), Scores(near.logical_or(any)));
}

TEST(AttentionInputs, HaveARelativeBias) {
  torch::manual_seed(moved(6));
  const auto bias = uniform({H, 5}, at::kDouble).requires_grad_();
  auto module = made(plain_options());
  expect_attention(module, AttentionInputs().relative_bias(bias),
                   Scores(Scores().seen, looked_up(bias, distances())), {bias});
  const auto positions = at::tensor({0, 2, 4, 5, 5, 1, 9}, at::kLong);
  const auto between = (positions.unsqueeze(0) - positions.unsqueeze(1)).view({1, 1, L, L});
  expect_attention(module, AttentionInputs().relative_bias(bias).relative_positions(positions),
                   Scores(Scores().seen, looked_up(bias, between)), {bias});
}

TEST(AttentionInputs, HaveRotaryAngles) {
  torch::manual_seed(moved(7));
  auto module = made(rotary_options());
  for (const int64_t batch : {int64_t{1}, B}) {
    const auto cos = uniform({batch, 1, L, D / 2}, at::kDouble).requires_grad_();
    const auto sin = uniform({batch, 1, L, D / 2}, at::kDouble).requires_grad_();
    const RotaryAngles angles{cos, sin};
    Scores scores;
    scores.angles = angles;
    expect_attention(module, AttentionInputs().rotary_angles(angles), scores, {cos, sin});
    // They take the place of those of positions.
    expect_attention(module, AttentionInputs().rotary_angles(angles).positions(at::arange(L)),
                     scores, {cos, sin});
  }
}

TEST(AttentionInputs, HavePositions) {
  torch::manual_seed(moved(8));
  auto module = made(rotary_options());
  const auto frequencies = at::tensor({1.0, 0.01}, at::kDouble);  // base^(-2 i / R)
  const auto rows = at::arange(B * L).view({B, L}).remainder(11) * 3;
  for (const auto& positions : {rows, rows[1], rows.to(at::kInt)}) {
    auto angles = (positions.to(at::kDouble).unsqueeze(-1) * frequencies).unsqueeze(-3);
    if (angles.dim() == 3) angles = angles.unsqueeze(0);
    Scores scores;
    scores.angles = {angles.cos(), angles.sin()};
    expect_attention(module, AttentionInputs().positions(positions), scores);
  }
  // Modules without a rotary embedding do not read them.
  expect_attention(made(plain_options()), AttentionInputs().positions(rows), Scores());
}

TEST(AttentionInputs, HavePositionsOnSeveralAxes) {
  torch::manual_seed(moved(9));
  const auto options = RotaryEmbeddingOptions(D).sections({1, 1});
  auto module = made(plain_options().rotary(options));
  const auto x = uniform({B, L, E}, at::kDouble);
  const auto places = at::arange(B * L * 2).view({B, L, 2}).remainder(5);
  const auto output = [&](const at::Tensor& positions) {
    return module->forward(x, AttentionInputs().positions(positions));
  };
  EXPECT_TRUE(output(places).equal(module->forward(
      x, AttentionInputs().rotary_angles(module->rotary->angles(places, at::kDouble)))));
  EXPECT_FALSE(is_close(output(places), module->forward(x), 1e-3));
  EXPECT_TRUE(output(places[0].unsqueeze(0)).equal(output(places[0].expand({B, L, 2}))));
  // Positions of text are the same on every axis.
  const auto text = places.select(2, 0);
  EXPECT_TRUE(output(text).equal(output(at::stack({text, text}, 2))));
  EXPECT_TRUE(output(text[0]).equal(output(text[0].expand({B, L}))));
}

/// Rotary embeddings whose frequencies depend on the length, and one whose do not.
std::vector<RotaryEmbeddingOptions> scaled_rotaries() {
  const RotaryEmbeddingOptions plain(D);
  auto longrope = plain, dynamic = plain;
  longrope.scaling(LongRopeScaling({1.0, 2.0}, {3.0, 5.0}, /*original_length=*/3));
  dynamic.scaling(NtkScaling(4.0).original_length(2));
  return {plain, longrope, dynamic};
}

TEST(AttentionInputs, PackDocumentsAsEachAlone) {
  torch::manual_seed(moved(10));
  const std::vector<std::vector<int64_t>> lengths = {{5, 2}, {1, 3, 3}, {7}, {2, 5}};
  std::vector<at::Tensor> documents, positions;
  for (const auto& row : lengths) {
    std::vector<at::Tensor> ids, own;
    for (const auto length : row) {
      ids.push_back(at::zeros({length}, at::kLong) + 7 * static_cast<int64_t>(ids.size()));
      own.push_back(at::arange(length));
    }
    documents.push_back(at::cat(ids));
    positions.push_back(at::cat(own));
  }
  const auto inputs =
      AttentionInputs().documents(at::stack(documents)).positions(at::stack(positions));
  for (const auto& rotary : scaled_rotaries()) {
    auto module = made(plain_options().rotary(rotary).causal(true));
    const auto x = uniform({B, L, E}, at::kDouble);
    const auto packed = module->forward(x, inputs);
    // All rows alike.
    const auto same = module->forward(
        x[0].expand({2, L, E}), AttentionInputs().documents(documents[0]).positions(positions[0]));
    EXPECT_TRUE(is_close(same, packed[0].expand({2, L, E}), kTolerance));
    for (size_t row = 0; row < lengths.size(); ++row) {
      int64_t first = 0;
      for (const auto length : lengths[row]) {
        const auto b = static_cast<int64_t>(row);
        const auto alone = module->forward(x[b].narrow(0, first, length).unsqueeze(0));
        EXPECT_TRUE(is_close(packed[b].narrow(0, first, length), alone[0], kTolerance));
        first += length;
      }
    }
  }
}

TEST(AttentionInputs, MakeMultiHeadAttentionTheSame) {
  torch::manual_seed(moved(11));
  MultiHeadAttention multi(
      MultiHeadAttentionOptions(E, H).dropout(0.0).rotary(RotaryEmbeddingOptions(D)));
  GroupQueryAttention grouped(
      GroupQueryAttentionOptions(E, H, H).rotary(RotaryEmbeddingOptions(D)));
  const at::NoGradGuard no_grad;
  const auto from = multi->parameters(), to = grouped->parameters();
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto inputs = AttentionInputs(random_mask({L, L}))
                          .documents(at::arange(L).floor_divide(3))
                          .positions(at::arange(L).remainder(3))
                          .relative_bias(uniform({H, 3}, at::kFloat));
  EXPECT_TRUE(multi->forward(x, inputs).equal(grouped->forward(x, inputs)));
}

TEST(AttentionInputs, AreTakenInContainers) {
  torch::manual_seed(moved(16));
  auto module = made(rotary_options());
  torch::nn::Sequential sequential(module);
  torch::nn::AnyModule any(module);
  const auto x = uniform({B, L, E}, at::kDouble);
  const auto inputs = AttentionInputs()
                          .documents(at::arange(L).floor_divide(3))
                          .positions(at::arange(L).remainder(3));
  const auto expected = module->forward(x, inputs);
  EXPECT_TRUE(sequential->forward(x, inputs).equal(expected));
  EXPECT_TRUE(any.forward(x, inputs).equal(expected));
  EXPECT_TRUE(module(x, inputs).equal(expected));
}

/// As in at::scaled_dot_product_attention, where queries are fewer than keys.
TEST(AttentionOptions, AlignTopLeft) {
  torch::manual_seed(moved(12));
  auto module = made(plain_options().causal(true).top_left(true));
  auto plain = made(plain_options());
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    plain->parameters()[i].set_data(module->parameters()[i]);
  }
  const auto query = uniform({B, 3, E}, at::kDouble), memory = uniform({B, 5, E}, at::kDouble);
  const auto mask = at::ones({3, 5}, at::kBool).tril();
  EXPECT_TRUE(is_close(module->forward(query, memory, memory),
                       plain->forward(query, memory, memory, mask), kTolerance));
}

/// Query i stands at position i, also for the rotary embedding: what it gets does not depend on how
/// many queries follow.
TEST(AttentionOptions, RotateFromTheTopLeft) {
  torch::manual_seed(moved(13));
  auto module = made(rotary_options().causal(true).top_left(true));
  const auto query = uniform({B, 5, E}, at::kDouble), memory = uniform({B, 5, E}, at::kDouble);
  const auto expected = module->forward(query, memory, memory).narrow(1, 0, 3);
  const auto few = query.narrow(1, 0, 3);
  EXPECT_TRUE(is_close(module->forward(few, memory, memory), expected, kTolerance));
  EXPECT_TRUE(
      is_close(module->forward(few, module->project_memory(memory, memory)), expected, kTolerance));
  const auto nested = [](const at::Tensor& rows) {
    return at::_nested_tensor_from_tensor_list({rows[0], rows[1]});
  };
  const auto sequences = nested(memory);
  EXPECT_TRUE(is_close(at::stack(module->forward(nested(few), sequences, sequences).unbind()),
                       expected.narrow(0, 0, 2), kTolerance));
}

TEST(AttentionInputs, RefuseWhatDoesNotFit) {
  auto plain = made(plain_options()), rotary = made(rotary_options());
  const auto x = at::zeros({B, L, E}, at::kDouble);
  const auto error = [&](GroupQueryAttention& module, const AttentionInputs& inputs) {
    return value_error([&] { module->forward(x, inputs); });
  };
  const auto ones = at::ones({B, 1, L, D / 2}, at::kDouble);
  EXPECT_EQ(error(plain, AttentionInputs().rotary_angles(RotaryAngles{ones, ones})),
            "GroupQueryAttention: rotary_angles must be absent: there is no rotary embedding");
  EXPECT_EQ(
      error(rotary, AttentionInputs().rotary_angles(RotaryAngles{ones, ones.narrow(2, 0, 3)})),
      "RotaryEmbedding: angles cos and sin must be [1 or B, 1, L, 2]; cos [4, 1, 7, 2], sin "
      "[4, 1, 3, 2]");
  for (auto* module : {&plain, &rotary}) {
    EXPECT_EQ(error(*module, AttentionInputs().positions(at::arange(L - 1))),
              "GroupQueryAttention: positions [6] must be [L], [B, L] or [B or 1, L, axes]; x [4, "
              "7, 16]");
    EXPECT_EQ(error(*module, AttentionInputs().positions(at::arange(L).unsqueeze(0))),
              "GroupQueryAttention: positions [1, 7] must be [L], [B, L] or [B or 1, L, axes]; x "
              "[4, 7, 16]");
    EXPECT_EQ(error(*module, AttentionInputs().positions(at::ones({L}))),
              "GroupQueryAttention: positions dtype (Float) must be an integer");
    EXPECT_EQ(error(*module, AttentionInputs().positions(at::Tensor())),
              "GroupQueryAttention: positions must be defined");
  }
  EXPECT_EQ(error(rotary, AttentionInputs().positions(at::zeros({B, L, 2}, at::kLong))),
            "RotaryEmbedding: positions rank (3) must equal 1 or 2; positions [4, 7, 2]");
  auto longrope = made(plain_options().rotary(scaled_rotaries()[1]));
  EXPECT_EQ(error(longrope, AttentionInputs().positions(at::arange(L)).documents(at::arange(3))),
            "GroupQueryAttention: documents [3] must have the shape [L] or [B, L]; query [4, 7, "
            "16], key [4, 7, 16]");
  const auto nested = at::_nested_tensor_from_tensor_list({x[0], x[1].narrow(0, 0, 3)});
  EXPECT_ERROR(
      "GroupQueryAttention: positions and rotary_angles must be absent where x is nested: each "
      "sequence counts its own positions",
      rotary->forward(nested, AttentionInputs().positions(at::arange(L))));
  const auto made_error = [](const GroupQueryAttentionOptions& options) {
    return value_error([&] { GroupQueryAttention module(options); });
  };
  EXPECT_EQ(made_error(plain_options().left_window(-1)),
            "GroupQueryAttention: left_window (-1) must be at least 0");
  EXPECT_EQ(made_error(plain_options().window(2).right_window(1)),
            "GroupQueryAttention: right_window (1) must be absent with window (2), which sets both "
            "sides");
}

}  // namespace
}  // namespace heed::test::of_attention_inputs
