// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/group_query_attention.h>
#include <heed/masks.h>
#include <heed/multi_head_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <string>
#include <tuple>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_projected_memory {
namespace {

constexpr int64_t B = 2, E = 24, H = 4, G = 2, L = 5, S = 7;

/// Every option that changes queries and keys before they meet.
std::vector<GroupQueryAttentionOptions> all_options() {
  const GroupQueryAttentionOptions plain(E, H, G);
  auto sized = plain;
  sized.key_emb_dim(10).value_emb_dim(9).head_dim(8).value_head_dim(3).sinks(true);
  auto turned = plain;
  turned.rotary(RotaryEmbeddingOptions(E / H)).qk_norm(QkNormOptions());
  auto turned_first = turned;
  turned_first.qk_norm(QkNormOptions().after_rotary(true)).causal(true).alibi(true);
  return {plain, sized, turned, turned_first};
}

TEST(ProjectedMemory, GivesWhatTheMemoryGives) {
  torch::manual_seed(moved(1));
  const auto mask = key_padding_mask(at::ones({B, S}, at::kBool).tril(3));
  for (const auto& options : all_options()) {
    GroupQueryAttention module(options);
    const auto query = uniform({B, L, E}, at::kFloat).requires_grad_();
    const auto key =
        uniform({B, S, options.key_emb_dim().value_or(E)}, at::kFloat).requires_grad_();
    const auto value =
        uniform({B, S, options.value_emb_dim().value_or(E)}, at::kFloat).requires_grad_();
    const auto bias = uniform({1, H, L, S}, at::kFloat);
    const auto memory = module->project_memory(key, value);
    const auto expected = module->forward(query, key, value, mask, bias);
    const auto actual = module->forward(query, memory, mask, bias);
    EXPECT_TRUE(actual.equal(expected));
    const auto [output, weights] = module->forward_with_weights(query, memory, mask, bias);
    const auto [expected_output, expected_weights] =
        module->forward_with_weights(query, key, value, mask, bias);
    EXPECT_TRUE(output.equal(expected_output));
    EXPECT_TRUE(weights.equal(expected_weights));

    std::vector<at::Tensor> inputs = module->parameters();
    inputs.insert(inputs.end(), {query, key, value});
    const auto weight = uniform(expected.sizes(), at::kFloat);
    const auto wanted = torch::autograd::grad({(expected * weight).sum()}, inputs);
    const auto gradients = torch::autograd::grad({(actual * weight).sum()}, inputs);
    EXPECT_TRUE(are_equal(gradients, wanted));
  }
}

TEST(ProjectedMemory, ThatDoesNotFitIsRefused) {
  MultiHeadAttention module(MultiHeadAttentionOptions(E, H).value_head_dim(5));
  const auto query = at::ones({B, L, E}), source = at::ones({B, S, E});
  const auto good = module->project_memory(source, source);
  const auto error = [&](const at::Tensor& key, const at::Tensor& value) {
    return value_error([&] { module->forward(query, ProjectedMemory(key, value)); });
  };
  const std::string prefix = "MultiHeadAttention: ";
  EXPECT_EQ(error({}, good.value), prefix + "memory key must be defined");
  EXPECT_EQ(error(source, good.value),
            prefix + "memory key [2, 7, 24] must be [2, 4, S, 6], as project_memory makes it");
  EXPECT_EQ(error(good.key, good.key),
            prefix + "memory value [2, 4, 7, 6] must be [2, 4, S, 5], as project_memory makes it");
  EXPECT_EQ(error(good.key.narrow(0, 0, 1), good.value),
            prefix + "memory key [1, 4, 7, 6] must be [2, 4, S, 6], as project_memory makes it");
  EXPECT_EQ(error(good.key, good.value.narrow(2, 0, 6)),
            prefix +
                "memory value dim 2 (6) must equal memory key dim 2 (7); memory key "
                "[2, 4, 7, 6], memory value [2, 4, 6, 5]");
  EXPECT_EQ(error(good.key, good.value.to(at::kDouble)),
            prefix + "memory value dtype (Double) must equal memory key dtype (Float)");
  EXPECT_EQ(error(good.key.to(at::kHalf), good.value.to(at::kHalf)),
            prefix + "memory key dtype (Half) must equal projected query dtype (Float)");
  EXPECT_ERROR(
      prefix + "mask dim 1 (6) must equal S (7); mask [5, 6], query [2, 5, 24], key [2, 4, 7, 6]",
      module->forward(query, good, at::ones({L, S - 1}, at::kBool)));
  EXPECT_ERROR(
      prefix + "value dim 1 (6) must equal key dim 1 (7); key [2, 7, 24], value [2, 6, 24]",
      module->project_memory(source, at::ones({B, S - 1, E})));
  EXPECT_ERROR(prefix + "key dim 2 (3) must equal emb_dim (24); key [2, 7, 3]",
               module->project_memory(at::ones({B, S, 3}), source));
}

}  // namespace
}  // namespace heed::test::of_projected_memory
