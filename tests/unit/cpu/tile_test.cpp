// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/tile.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/masks.h>
#include <torch/utils.h>

#include <map>

#include "cpu/block/products.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::tiles {
namespace {

constexpr int64_t kLength = 2048;

detail::Problem problem_of(const AttendOptions& options, int64_t length = kLength) {
  const Sizes s{1, 1, 1, length, length, 8, 8};
  const auto inputs = make_inputs(s, at::kFloat);
  return detail::make_problem("test", inputs.query, inputs.key, inputs.value, options);
}

/// Scores that the products of a forward pass have, and those that its sums over keys take.
struct Computed {
  int64_t scores = 0, weights = 0, summed_rows = 0;
};

Computed computed_of(const detail::Problem& problem) {
  const detail::BlockLayout layout(problem, detail::LayoutUse::forward, /*threads=*/1);
  detail::Tile tile(layout);
  Computed computed;
  for (int64_t n = 0; n < layout.blocks(); ++n) {
    tile.set_rows(layout.block(n));
    for (int64_t k = 0; k < layout.key_blocks(); ++k) {
      const auto keys = layout.key_block(k);
      const bool may_see = layout.may_see(layout.block(n), keys);
      const bool sees = tile.set_keys(keys);
      EXPECT_TRUE(may_see || !sees) << n << ", " << k;
      tile.for_each_run([&](int64_t, int64_t rows, int64_t, int64_t columns) {
        computed.scores += rows * columns;
      });
      tile.for_each_sum_over_columns(256, [&](int64_t, int64_t rows, const auto& runs) {
        for (const auto& run : runs) computed.weights += rows * run.count;
      });
      tile.for_each_sum_over_rows([&](int64_t, int64_t columns, const auto& runs) {
        for (const auto& run : runs) computed.summed_rows += columns * run.count;
      });
    }
  }
  return computed;
}

double share(int64_t computed) {
  return static_cast<double>(computed) / static_cast<double>(kLength * kLength);
}

class Tile : public KernelTest {};
class ShownKeys : public KernelTest {};

TEST_F(Tile, OfNoMaskIsWhole) {
  const auto computed = computed_of(problem_of({}));
  EXPECT_EQ(computed.scores, kLength * kLength);
  EXPECT_EQ(computed.weights, kLength * kLength);
  EXPECT_EQ(computed.summed_rows, kLength * kLength);
}

/// Cells are 16 keys wide and strips 16 queries high, from the first query of a block on.
TEST_F(Tile, ComputesWhatIsSeen) {
  torch::manual_seed(moved(3));
  const auto i = at::arange(kLength).unsqueeze(1), j = at::arange(kLength).unsqueeze(0);
  const auto blocks = at::rand({8, 8}).lt(0.4).repeat_interleave(256, 0).repeat_interleave(256, 1);
  const auto ids = at::arange(kLength).floor_divide(256);
  const struct {
    const char* name;
    AttendOptions options;
    double least, most;
  } cases[] = {
      {"documents", AttendOptions().documents(ids), 1 / 8.0, 1 / 8.0},
      {"mask of documents", AttendOptions().mask(document_mask(ids)), 1 / 8.0, 1 / 8.0},
      {"blocks", AttendOptions().mask(blocks), blocks.to(at::kFloat).mean().item<double>(),
       blocks.to(at::kFloat).mean().item<double>()},
      {"padding", AttendOptions().mask(padding_mask(at::tensor({160}, at::kLong), kLength)),
       160.0 / kLength, 160.0 / kLength},
      {"causal", AttendOptions().causal(true), 0.5, 0.504},
      {"causal mask", AttendOptions().mask(causal_mask(kLength, kLength)), 0.5, 0.504},
      {"window", AttendOptions().causal(true).window(128), 0.06, 0.0704},
      {"documents and causal", AttendOptions().documents(ids).causal(true), 1 / 16.0, 0.067},
      {"stripes", AttendOptions().mask((i - j).remainder(256).lt(16)), 1 / 16.0, 0.125},
      {"narrow stripes", AttendOptions().mask((i - j).remainder(256).eq(0)), 1 / 16.0, 1 / 16.0},
      {"one key", AttendOptions().mask(j.eq(77).expand({kLength, kLength})), 16.0 / kLength,
       16.0 / kLength},
      {"nothing", AttendOptions().mask(j.lt(0).expand({kLength, kLength})), 0.0, 0.0},
  };
  for (const auto& c : cases) {
    const auto computed = computed_of(problem_of(c.options));
    for (const auto count : {computed.scores, computed.weights, computed.summed_rows}) {
      EXPECT_GE(share(count), c.least) << c.name;
      EXPECT_LE(share(count), c.most) << c.name;
    }
  }
}

/// For each strip of the tile that sees something: whether all its rows see all keys of its cells,
/// which have 16.
std::map<int64_t, bool> strips_without_hidden_keys(detail::Tile& tile) {
  std::map<int64_t, bool> strips;
  tile.for_each_run([&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const auto first_key = tile.keys().first + column;
    for (auto r = row; r < row + rows; ++r) {
      bool sees_all = columns % detail::kCellKeys == 0;
      for (auto key = first_key; key < first_key + columns; ++key) {
        sees_all = sees_all && detail::sees(tile.row(r), key);
      }
      auto& of_strip = strips.emplace(r / detail::kStripRows, true).first->second;
      of_strip = of_strip && sees_all;
    }
  });
  return strips;
}

/// The last strip has fewer queries, and the last cell fewer keys.
TEST_F(Tile, KnowsTheStripsInWhichNothingIsHidden) {
  constexpr int64_t kShort = 1000;
  const auto i = at::arange(kShort).unsqueeze(1), j = at::arange(kShort).unsqueeze(0);
  const auto stripes = (i.floor_divide(64) - j.floor_divide(64)).remainder(3).eq(0);
  const struct {
    const char* name;
    AttendOptions options;
    bool has_unhidden;
  } cases[] = {
      {"nothing", AttendOptions(), true},
      {"causal", AttendOptions().causal(true), true},
      {"window", AttendOptions().causal(true).window(300), false},
      {"blocks", AttendOptions().mask(stripes), true},
      {"causal blocks", AttendOptions().causal(true).mask(stripes), true},
      {"one key each", AttendOptions().mask(i.ne(j)), true},
      {"padding", AttendOptions().mask(padding_mask(at::tensor({600}, at::kLong), kShort)), true},
      {"documents", AttendOptions().documents(at::arange(kShort).floor_divide(96)), true},
      {"every second key", AttendOptions().mask((i - j).remainder(2).eq(0)), false},
  };
  for (const auto& c : cases) {
    const auto problem = problem_of(c.options, kShort);
    const detail::BlockLayout layout(problem, detail::LayoutUse::forward, /*threads=*/1);
    detail::Tile tile(layout);
    bool has_unhidden = false;
    for (int64_t n = 0; n < layout.blocks(); ++n) {
      tile.set_rows(layout.block(n));
      for (int64_t k = 0; k < layout.key_blocks(); ++k) {
        tile.set_keys(layout.key_block(k));
        for (const auto& [strip, expected] : strips_without_hidden_keys(tile)) {
          EXPECT_EQ(tile.has_unhidden(strip * detail::kStripRows, 1), expected)
              << c.name << ", block " << n << ", keys " << k << ", strip " << strip;
          has_unhidden = has_unhidden || expected;
        }
      }
    }
    EXPECT_EQ(has_unhidden, c.has_unhidden) << c.name;
  }
}

TEST_F(ShownKeys, TakesNoNoticeOfWhatHidesNothing) {
  const auto hides = [](const AttendOptions& options) {
    const auto problem = problem_of(options, 70);
    return detail::ShownKeys(problem).hides();
  };
  EXPECT_FALSE(hides(AttendOptions().mask(at::ones({70, 70}, at::kBool))));
  EXPECT_FALSE(hides(AttendOptions().documents(at::ones({70}, at::kLong) * 9)));
  auto mask = at::ones({70, 70}, at::kBool);
  mask[69][69].fill_(false);
  EXPECT_TRUE(hides(AttendOptions().mask(mask)));
  auto ids = at::ones({70}, at::kLong);
  ids[69].fill_(2);
  EXPECT_TRUE(hides(AttendOptions().documents(ids)));
}

/// In every layout, cell by cell.
TEST_F(ShownKeys, SeesWhatAMaskShows) {
  torch::manual_seed(moved(4));
  const auto random = at::rand({70, 1100}).gt(0.1);
  auto wide = random.clone();
  wide.narrow(1, 64, 200).fill_(true);
  wide.narrow(1, 500, 90).fill_(false);
  const auto transposed = wide.t().contiguous().t();
  const auto sliced = at::ones({70, 2200}, at::kBool).slice(1, 0, 2200, 2).copy_(wide);
  for (const auto& mask : {wide, transposed, sliced}) {
    const Sizes s{2, 4, 4, 70, 1100, 8, 8};
    const auto inputs = make_inputs(s, at::kFloat);
    const auto problem = detail::make_problem("test", inputs.query, inputs.key, inputs.value,
                                              AttendOptions().mask(mask));
    const detail::ShownKeys shown_keys(problem);
    for (const int64_t i : {0, 5, 69}) {
      for (const int64_t cell : {0, 3, 30, 64, 68}) {
        const auto count = std::min<int64_t>(64, 69 - cell);
        detail::CellBits bits;
        shown_keys.cells(1, 2, {i, i + 1}, cell, count, &bits, 1);
        for (int64_t n = 0; n < count; ++n) {
          const auto first = (cell + n) * 16;
          const auto keys = wide[i].narrow(0, first, std::min<int64_t>(16, 1100 - first));
          EXPECT_EQ(bits.any >> n & 1U, keys.any().item<bool>()) << i << ", " << cell + n;
          EXPECT_EQ(bits.all >> n & 1U, keys.all().item<bool>()) << i << ", " << cell + n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed::test::tiles
