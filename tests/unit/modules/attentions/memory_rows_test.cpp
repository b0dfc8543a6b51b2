// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/paged_kv_cache.h>
#include <torch/utils.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_memory_rows {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t E = 24, H = 6, G = 2, S = 7;

/// A step of sequences with so many tokens each.
PagedStep step_of(PagedKVCache& cache, const Numbers& counts) {
  Numbers sequences;
  for (size_t n = 0; n < counts.size(); ++n) sequences.push_back(cache.add());
  return cache.append(sequences, counts);
}

/// The part of a mask that row `row` of M has.
std::optional<at::Tensor> mask_of(const std::optional<at::Tensor>& mask, int64_t row) {
  if (!mask || mask->dim() == 2 || mask->size(0) == 1) return mask;
  return mask->narrow(0, row, 1);
}

/// Each sequence alone, as a batch of one.
template <typename Module>
at::Tensor expected_rows(Module& module, const at::Tensor& x, const at::Tensor& memory,
                         const Numbers& counts, const Numbers& rows,
                         const std::optional<at::Tensor>& mask) {
  std::vector<at::Tensor> outputs;
  int64_t first = 0;
  for (size_t n = 0; n < counts.size(); ++n) {
    const auto own = memory.narrow(0, rows[n], 1);
    for (int64_t i = 0; i < counts[n]; ++i) {
      const auto query = x.narrow(1, first + i, 1);
      outputs.push_back(module->forward(query, own, own, mask_of(mask, rows[n])));
    }
    first += counts[n];
  }
  return outputs.empty() ? x : at::cat(outputs, 1);
}

struct Case {
  std::string name;
  Numbers counts, rows;
  int64_t memories;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"a row for each", {1, 1, 1}, {0, 1, 2}, 3},
      {"rows in another order", {1, 1, 1}, {2, 0, 1}, 3},
      {"beams", {1, 1, 1, 1, 1, 1}, {0, 0, 0, 1, 1, 1}, 2},
      {"mixed beams", {1, 1, 1, 1, 1}, {1, 0, 1, 1, 0}, 2},
      {"a row that nobody has", {1, 1, 1}, {3, 1, 1}, 5},
      {"different lengths", {4, 1, 0, 9}, {1, 0, 2, 1}, 3},
      {"one row for all", {3, 2}, {0, 0}, 1},
      {"no tokens", {0, 0}, {1, 0}, 2},
      {"one token", {1}, {0}, 1},
  };
  return all;
}

TEST(MemoryRows, GiveWhatEachSequenceGetsAlone) {
  torch::manual_seed(moved(0));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      GroupQueryAttention own(GroupQueryAttentionOptions(E, H, G)
                                  .value_head_dim(5)
                                  .qk_norm(QkNormOptions())
                                  .sinks(true)
                                  .softcap(3.0));
      own->to(device, dtype);
      auto exact = copy_of(own, device, at::kDouble);
      for (const auto& [name, counts, rows, memories] : cases()) {
        auto cache = own->make_paged_cache(8, PagedCacheOptions().page_size(16));
        auto step = step_of(cache, counts);
        // Not contiguous.
        const auto x =
            uniform({1, E, step.tokens()}, at::device(device).dtype(dtype)).transpose(1, 2);
        const auto memory = uniform({memories, S, E}, at::device(device).dtype(dtype));
        const auto seen = [&](at::IntArrayRef shape) { return random_mask(shape).to(device); };
        for (const auto& mask : std::vector<std::optional<at::Tensor>>{
                 std::nullopt, seen({1, S}), seen({memories, 1, S}), seen({1, 1, 1, S}),
                 seen({memories, H, 1, S})}) {
          const auto output = own->forward_cached(x, step.memory_rows(rows),
                                                  own->project_memory(memory, memory), mask);
          const auto expected =
              expected_rows(exact, x.to(at::kDouble), memory.to(at::kDouble), counts, rows, mask);
          EXPECT_EQ(output.scalar_type(), dtype);
          // Projections of 24 terms, and rounded heads, scores and outputs.
          EXPECT_TRUE(is_close(output, expected, 30 * unit_roundoff(dtype))) << name;
        }
      }
    }
  }
}

TEST(MemoryRows, AreThoseOfTheSequencesByDefault) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  MultiHeadAttention own(MultiHeadAttentionOptions(E, H).dropout(0.0));
  auto cache = own->make_paged_cache(8);
  auto step = step_of(cache, {2, 3});
  const auto x = uniform({1, 5, E}, at::kFloat), memory = uniform({2, S, E}, at::kFloat);
  const auto projected = own->project_memory(memory, memory);
  const auto expected = expected_rows(own, x, memory, {2, 3}, {0, 1}, std::nullopt);
  EXPECT_TRUE(is_close(own->forward_cached(x, step, projected), expected, 1e-6));
  // Rows may be given again, between two layers.
  step.memory_rows({1, 1});
  EXPECT_TRUE(is_close(own->forward_cached(x, step, projected),
                       expected_rows(own, x, memory, {2, 3}, {1, 1}, std::nullopt), 1e-6));
}

TEST(MemoryRows, AreChecked) {
  const at::NoGradGuard no_grad;
  GroupQueryAttention own(GroupQueryAttentionOptions(E, H, G));
  auto cache = own->make_paged_cache(8);
  auto step = step_of(cache, {2, 1});
  EXPECT_ERROR("PagedStep::memory_rows: rows size (3) must equal the step's sequences (2)",
               step.memory_rows({0, 1, 2}));
  EXPECT_ERROR("PagedStep::memory_rows: rows[1] (-1) must be at least 0",
               step.memory_rows({0, -1}));
  const auto x = at::ones({1, 3, E});
  const auto memory = [&](int64_t rows) {
    const auto source = at::ones({rows, S, E});
    return own->project_memory(source, source);
  };
  EXPECT_ERROR(
      "GroupQueryAttention: memory dim 0 (3) must equal the step's sequences (2), or the step must "
      "have memory_rows",
      own->forward_cached(x, step, memory(3)));
  step.memory_rows({0, int64_t{1} << 62});
  EXPECT_ERROR(
      "GroupQueryAttention: memory dim 0 (3) must be above each of the step's memory_rows "
      "(4611686018427387904)",
      own->forward_cached(x, step, memory(3)));
  step.memory_rows({0, 1});
  EXPECT_ERROR("GroupQueryAttention: x must be [1, T, ..] with the step's 3 tokens; x [1, 2, 24]",
               own->forward_cached(x.narrow(1, 0, 2), step, memory(2)));
  EXPECT_ERROR(
      "GroupQueryAttention: memory value [2, 2, 7, 3] must be [2, 2, S, 4], as project_memory "
      "makes "
      "it",
      own->forward_cached(x, step,
                          ProjectedMemory(memory(2).key, memory(2).value.narrow(3, 0, 3))));
  EXPECT_ERROR(
      "GroupQueryAttention: memory value [1, 2, 7, 4] must be [2, 2, S, 4], as project_memory "
      "makes "
      "it",
      own->forward_cached(x, step, ProjectedMemory(memory(2).key, memory(1).value)));
  EXPECT_ERROR(
      "GroupQueryAttention: mask dim 0 (3) must equal L (1); mask [3, 7], query [1, 3, 24], key "
      "[2, "
      "2, 7, 4]",
      own->forward_cached(x, step, memory(2), at::ones({3, S}, at::kBool)));
  GroupQueryAttention causal(GroupQueryAttentionOptions(E, H, G).causal(true));
  EXPECT_ERROR(
      "GroupQueryAttention: causal, windows, alibi and rotary must be absent where a step attends "
      "to a memory: its tokens have no positions there",
      causal->forward_cached(x, step, memory(2)));
}

}  // namespace
}  // namespace heed::test::of_memory_rows
