// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/key_operands.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <limits>

#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::key_operands {
namespace {

// Four blocks of queries and four of keys, in two heads.
constexpr int64_t kLength = 1024;
constexpr int64_t kBlock = 256;
constexpr double kScale = 0.5;

Inputs inputs_of(int64_t groups = 2) {
  torch::manual_seed(moved(6));
  const Sizes s{1, 2, groups, kLength, kLength, 8, 8};
  return make_inputs(s, at::kFloat);
}

detail::Problem problem_of(const Inputs& inputs, AttendOptions options) {
  return detail::make_problem("test", inputs.query, inputs.key, inputs.value,
                              options.scale(kScale));
}

void expect_keys_of(const detail::Tile& tile, const detail::BlockLayout& layout,
                    const detail::KeyOperands<float>::Packed& packed) {
  const auto& problem = layout.problem();
  const auto rows_of = [&](const at::Tensor& tensor) {
    return tensor[0][tile.block().group].narrow(0, tile.keys().first, tile.width());
  };
  const auto keys = at::from_blob(const_cast<float*>(packed.transposed_keys),
                                  {problem.head_dim(), tile.width()}, {layout.tile_stride(), 1});
  EXPECT_TRUE(at::equal(keys.t(), rows_of(problem.key) * kScale)) << tile.keys().first;
  const auto& matrix = packed.values.matrix;
  const auto values = at::from_blob(const_cast<float*>(matrix.data),
                                    {tile.width(), problem.value_head_dim()}, {matrix.row, 1});
  EXPECT_TRUE(at::equal(values, rows_of(problem.value).nan_to_num(0))) << tile.keys().first;
}

/// How often keys are packed, with memory for so many blocks of them. What is packed is checked.
int64_t packs_of(const detail::Problem& problem, int64_t blocks_kept) {
  const detail::ScopedBlockSizes sizes({kBlock, kBlock});
  const detail::BlockLayout layout(problem, detail::LayoutUse::forward, /*threads=*/1);
  const auto columns = problem.head_dim() * layout.tile_stride() +
                       layout.block_keys() * detail::padded(problem.value_head_dim());
  detail::KeyOperands<float> operands(layout,
                                      blocks_kept * columns * static_cast<int64_t>(sizeof(float)));
  detail::Tile tile(layout);
  int64_t packs = 0;
  for (int64_t n = 0; n < layout.blocks(); ++n) {
    const auto block = layout.query_block(n);
    tile.set_rows(block);
    for (int64_t k = 0; k < layout.key_blocks(); ++k) {
      const auto keys = layout.seen_of(block, layout.key_block(k));
      if (keys.empty() || !tile.set_keys(keys)) continue;
      if (!operands.has(block, keys)) ++packs;
      expect_keys_of(tile, layout, operands.pack(tile));
      EXPECT_TRUE(operands.has(block, keys));
    }
  }
  return packs;
}

class KeyOperands : public KernelTest {};

TEST_F(KeyOperands, ArePackedOnceForAllQueriesOfAGroup) {
  EXPECT_EQ(packs_of(problem_of(inputs_of(), {}), 4), 2 * 4);
  EXPECT_EQ(packs_of(problem_of(inputs_of(), AttendOptions().causal(true)), 4), 2 * 4);
  EXPECT_EQ(packs_of(problem_of(inputs_of(/*groups=*/1), {}), 4), 4);
}

TEST_F(KeyOperands, AreKeptAsFarAsThereIsMemory) {
  const auto inputs = inputs_of();
  EXPECT_EQ(packs_of(problem_of(inputs, {}), 0), 2 * 16);
  EXPECT_EQ(packs_of(problem_of(inputs, {}), 2), 2 * (2 + 4 * 2));
  EXPECT_EQ(packs_of(problem_of(inputs, {}), 3), 2 * 4) << "one more is not kept for others";
}

/// The last queries come first. A block of which they see a part is packed again.
TEST_F(KeyOperands, OfAWindowTakeThePlaceOfThoseBehindIt) {
  const auto window = AttendOptions().causal(true).window(400);
  EXPECT_EQ(packs_of(problem_of(inputs_of(), window), 3), 2 * (4 + 2));
}

TEST_F(KeyOperands, AreNotKeptForOneBlockOfQueries) {
  const auto window = AttendOptions().causal(true).window(100);
  EXPECT_EQ(packs_of(problem_of(inputs_of(), window), 4), 2 * 7);
}

/// One block of queries may see the end of a block of keys, and the next its beginning.
TEST_F(KeyOperands, AreThoseThatOtherQueriesSeeToo) {
  torch::manual_seed(moved(7));
  const auto seen = at::rand({kLength / 64, kLength / 64}).lt(0.4);
  const auto mask = seen.repeat_interleave(64, 0).repeat_interleave(64, 1);
  EXPECT_EQ(packs_of(problem_of(inputs_of(), AttendOptions().mask(mask)), 4), 2 * 4);
}

TEST_F(KeyOperands, HaveNoneThatAreNotFiniteWhereSomeAreHidden) {
  auto inputs = inputs_of();
  inputs.value[0][1][kBlock + 3][2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(packs_of(problem_of(inputs, AttendOptions().causal(true)), 4), 2 * 4);
}

}  // namespace
}  // namespace heed::test::key_operands
