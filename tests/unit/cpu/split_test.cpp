// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cpu/block/tile.h"
#include "cpu/decode/splits.h"

namespace heed::test::split {
namespace {

using detail::BlockLayout;
using detail::LayoutUse;
using detail::RowBlock;

constexpr int64_t kHeadDim = 64;

/// Numbers of products that tiles compute; those of heads that are alike are counted once.
class TileCosts {
 public:
  explicit TileCosts(const BlockLayout& layout) : layout_(layout), tile_(layout) {}

  int64_t of(RowBlock block, int64_t key_block) {
    block.batch = block.group = block.first_head = 0;
    const auto found = known_.find({block.first_query, key_block});
    if (found != known_.end()) return found->second;
    int64_t cost = 0;
    tile_.set_rows(block);
    if (layout_.may_see(block, layout_.key_block(key_block)) &&
        tile_.set_keys(layout_.key_block(key_block))) {
      tile_.for_each_run([&](int64_t /*row*/, int64_t rows, int64_t /*column*/, int64_t columns) {
        cost += rows * columns;
      });
    }
    known_[{block.first_query, key_block}] = cost;
    return cost;
  }

 private:
  const BlockLayout& layout_;
  detail::Tile tile_;
  std::map<std::pair<int64_t, int64_t>, int64_t> known_;
};

/// The cost of each task, in the order in which threads take them.
std::vector<int64_t> task_costs(const BlockLayout& layout, LayoutUse use) {
  TileCosts tiles(layout);
  std::vector<int64_t> costs;
  for (int64_t n = 0; n < layout.tasks(); ++n) {
    int64_t cost = 0;
    if (use == LayoutUse::backward) {
      const auto task = layout.key_task(n);
      for (int64_t block = 0; block < layout.blocks_per_group(); ++block) {
        cost += tiles.of(layout.block(block), task.key_block);
      }
    } else {
      const auto task = layout.query_task(n);
      for (auto block = task.first; block < task.last; ++block) {
        for (int64_t keys = 0; keys < layout.key_blocks(); ++keys) {
          cost += tiles.of(layout.query_block(block), keys);
        }
      }
    }
    costs.push_back(cost);
  }
  return costs;
}

/// The work of the busiest thread over the mean, if each takes the next task when it is done.
double busiest(const std::vector<int64_t>& costs, int64_t threads) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
  for (int64_t i = 0; i < threads; ++i) ends.push(0);
  int64_t last = 0, sum = 0;
  for (const auto cost : costs) {
    const auto end = ends.top() + cost;
    ends.pop();
    ends.push(end);
    last = std::max(last, end);
    sum += cost;
  }
  return static_cast<double>(last * threads) / static_cast<double>(sum);
}

detail::Problem make_problem(int64_t heads, int64_t length, bool causal) {
  const auto tensor = at::empty({1, heads, length, kHeadDim});
  return detail::make_problem("split", tensor, tensor, tensor, AttendOptions().causal(causal));
}

void expect_even(int64_t heads, int64_t length, bool causal, LayoutUse use, int64_t threads) {
  const auto problem = make_problem(heads, length, causal);
  const BlockLayout layout(problem, use, threads);
  const auto costs = task_costs(layout, use);
  SCOPED_TRACE(std::string(use == LayoutUse::backward ? "backward, " : "forward, ") +
               std::to_string(heads) + (causal ? " causal" : "") + " heads of " +
               std::to_string(length) + ", " + std::to_string(threads) + " threads");
  // Smaller blocks of keys cost more than an even split of them gains, or there are none.
  const bool too_few = use == LayoutUse::backward && length == 512 && threads == 64;
  EXPECT_LE(busiest(costs, layout.threads()), !too_few ? 1.15 : causal ? 1.2 : 1.34);
  // More threads would not be done much sooner.
  EXPECT_LE(busiest(costs, layout.threads()) / static_cast<double>(layout.threads()),
            1.1 * busiest(costs, threads) / static_cast<double>(threads));
}

/// Counted, not timed.
TEST(SplitOfWork, IsEven) {
  for (const auto use : {LayoutUse::forward, LayoutUse::backward}) {
    for (const bool causal : {false, true}) {
      for (const int64_t length : {512, 2048}) {
        for (int64_t heads = 1; heads <= 64; ++heads) {
          for (const int64_t threads : {1, 2, 4, 8, 16, 64}) {
            expect_even(heads, length, causal, use, threads);
          }
        }
      }
    }
  }
}

/// Where costs do not fall from the first task to the last, no thread is left out.
TEST(SplitOfWork, KeepsThreadsWhereCostsDoNotFall) {
  const auto tensor = at::empty({1, 1, 1024, kHeadDim});
  const auto threads_for = [&](const AttendOptions& options) {
    const auto problem = detail::make_problem("split", tensor, tensor, tensor, options);
    const BlockLayout layout(problem, LayoutUse::backward, 64);
    EXPECT_EQ(layout.tasks(), 32);
    return layout.threads();
  };
  const auto causal = AttendOptions().causal(true);
  EXPECT_EQ(threads_for({}), 32);
  EXPECT_EQ(threads_for(causal), 17);
  EXPECT_EQ(threads_for(AttendOptions(causal).window(100)), 32);
  EXPECT_EQ(threads_for(AttendOptions(causal).documents(at::arange(1024).div(64, "floor"))), 32);
}

/// Beside global tokens, only the keys of windows and of these tokens cost anything.
TEST(SplitOfWork, IsWhatWindowsAndGlobalTokensShow) {
  const auto tensor = at::empty({1, 1, 4096, kHeadDim});
  for (const auto use : {LayoutUse::forward, LayoutUse::backward}) {
    const auto cost = [&](const AttendOptions& options) {
      const auto problem = detail::make_problem("split", tensor, tensor, tensor, options);
      const BlockLayout layout(problem, use, 4);
      const auto costs = task_costs(layout, use);
      return static_cast<double>(std::accumulate(costs.begin(), costs.end(), int64_t{0}));
    };
    const auto windows = AttendOptions().left_window(64).right_window(64);
    const auto global = at::arange(4096).lt(3);
    EXPECT_LT(cost(AttendOptions(windows).global_tokens(global)), 0.07 * cost({}));
    EXPECT_LT(cost(AttendOptions(windows).global_tokens(global).causal(true)), 0.05 * cost({}));
  }
}

/// The keys of each split.
std::vector<int64_t> split_costs(const detail::Splits& splits) {
  std::vector<int64_t> costs;
  for (int64_t split = 0; split < splits.count(); ++split) {
    int64_t cost = 0;
    splits.for_each_part(split, [&](int64_t /*column*/, detail::KeyRange keys, int64_t /*number*/) {
      cost += keys.last - keys.first;
    });
    costs.push_back(cost);
  }
  return costs;
}

/// Each thread takes its share of the splits, one after the other.
double unevenness(const detail::Splits& splits, int64_t threads) {
  const auto useful = std::min(splits.count(), detail::useful_threads(splits.cost(), threads));
  const auto share = detail::ceil_div(splits.count(), useful);
  const auto costs = split_costs(splits);
  int64_t most = 0, sum = 0;
  for (int64_t first = 0; first < splits.count(); first += share) {
    const auto last = std::min(first + share, splits.count());
    const auto cost = std::accumulate(costs.begin() + first, costs.begin() + last, int64_t{0});
    most = std::max(most, cost);
    sum += cost;
  }
  return static_cast<double>(most * useful) / static_cast<double>(sum);
}

TEST(SplitOfWork, IsEvenInDecoding) {
  constexpr int64_t kKeyCost = 4 * kHeadDim;  // one query, one group
  for (const int64_t keys : {256, 1000, 4096, 16384}) {
    for (int64_t heads = 1; heads <= 64; ++heads) {
      const detail::Splits splits({{0, keys}}, heads, kKeyCost);
      for (const int64_t threads : {1, 2, 4, 8, 16, 64}) {
        EXPECT_LE(unevenness(splits, threads), 1.15)
            << keys << " keys, " << heads << " heads, " << threads << " threads";
      }
    }
  }
}

/// The sequences have 512, 1024 and so on to 4096 keys.
TEST(SplitOfWork, IsEvenInDecodingOfSequencesOfAnyLength) {
  std::vector<detail::KeyRange> keys;
  for (int64_t length = 512; length <= 4096; length += 512) keys.push_back({4096 - length, 4096});
  for (const int64_t heads : {1, 3, 8}) {
    const detail::Splits splits(keys, heads, 4 * kHeadDim);
    for (const int64_t threads : {1, 2, 4, 8, 16, 64}) {
      EXPECT_LE(unevenness(splits, threads), 1.05) << heads << " heads, " << threads << " threads";
    }
  }
}

TEST(SplitOfWork, HasEveryKeyInOneSplit) {
  for (const int64_t heads : {1, 5, 64}) {
    const std::vector<detail::KeyRange> keys = {{0, 1}, {7, 5000}, {0, 0}, {0, 256}, {300, 900}};
    const detail::Splits splits(keys, heads, 4 * kHeadDim);
    std::map<int64_t, int64_t> next;  // of each column, the key that comes next
    std::map<int64_t, std::vector<int64_t>> numbers;
    for (int64_t split = 0; split < splits.count(); ++split) {
      splits.for_each_part(split, [&](int64_t column, detail::KeyRange part, int64_t number) {
        const auto& own = keys[static_cast<size_t>(column / heads)];
        EXPECT_EQ(part.first, next.emplace(column, own.first).first->second);
        EXPECT_LE(part.last - part.first, 4096);
        next[column] = part.last;
        EXPECT_EQ(number == detail::Splits::kWhole,
                  part.first == own.first && part.last == own.last);
        if (number != detail::Splits::kWhole) numbers[column].push_back(number);
      });
    }
    ASSERT_EQ(next.size(), keys.size() * static_cast<size_t>(heads));
    std::set<int64_t> all;
    for (const auto& [column, end] : next) {
      EXPECT_EQ(end, keys[static_cast<size_t>(column / heads)].last);
      const auto parts = splits.parts_of(column);
      std::vector<int64_t> found;
      for (auto number = parts.first; number < parts.last; ++number) found.push_back(number);
      EXPECT_EQ(found, numbers[column]);
      all.insert(found.begin(), found.end());
    }
    EXPECT_EQ(static_cast<int64_t>(all.size()), splits.parts());
    EXPECT_TRUE(all.empty() || (*all.begin() == 0 && *all.rbegin() == splits.parts() - 1));
  }
}

/// The number of blocks of each task of the forward pass.
std::vector<int64_t> blocks_of_tasks(const detail::Problem& problem, int64_t threads) {
  const BlockLayout layout(problem, LayoutUse::forward, threads);
  std::vector<int64_t> blocks;
  for (int64_t n = 0; n < layout.tasks(); ++n) {
    blocks.push_back(layout.query_task(n).last - layout.query_task(n).first);
  }
  return blocks;
}

TEST(SplitOfWork, KeepsBlocksThatSeeTheSameKeysTogether) {
  const auto blocks = blocks_of_tasks(make_problem(8, 2048, /*causal=*/false), 2);
  EXPECT_EQ(std::vector<int64_t>(blocks.begin(), blocks.begin() + 5), std::vector<int64_t>(5, 8));
  EXPECT_EQ(blocks.back(), 1) << "to even out the end";
  const auto each_alone = [](const detail::Problem& problem) {
    const auto sizes = blocks_of_tasks(problem, 2);
    return std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n == 1; });
  };
  EXPECT_FALSE(each_alone(make_problem(8, 2048, /*causal=*/true)));
  EXPECT_TRUE(each_alone(make_problem(1, 2048, /*causal=*/true))) << "few, and of different cost";
  const auto tensor = at::empty({1, 8, 2048, kHeadDim});
  const auto documents = AttendOptions().documents(at::arange(2048).div(128, "floor"));
  EXPECT_TRUE(each_alone(detail::make_problem("split", tensor, tensor, tensor, documents)))
      << "no keys are the same";
}

/// All tasks, each once.
TEST(SplitOfWork, HasEveryTaskOnce) {
  for (const int64_t heads : {1, 3, 48}) {
    const auto problem = make_problem(heads, 500, /*causal=*/true);
    for (const int64_t threads : {1, 5, 64}) {
      const BlockLayout forward(problem, LayoutUse::forward, threads);
      std::vector<int64_t> rows(static_cast<size_t>(heads * 500));
      for (int64_t n = 0; n < forward.tasks(); ++n) {
        const auto task = forward.query_task(n);
        for (auto number = task.first; number < task.last; ++number) {
          const auto block = forward.query_block(number);
          for (int64_t r = 0; r < block.rows(); ++r) {
            ++rows[static_cast<size_t>(forward.first_row(block) + r)];
          }
        }
      }
      EXPECT_EQ(rows, std::vector<int64_t>(rows.size(), 1)) << heads << ", " << threads;
      const BlockLayout backward(problem, LayoutUse::backward, threads);
      std::map<std::pair<int64_t, int64_t>, int64_t> next;
      for (int64_t n = 0; n < backward.tasks(); ++n) {
        const auto task = backward.key_task(n);
        EXPECT_EQ(task.key_block, (next[{task.batch, task.group}]++))
            << "of a group, an earlier one is waited for; " << heads << ", " << threads;
      }
      EXPECT_EQ(static_cast<int64_t>(next.size()) * backward.key_blocks(), backward.tasks());
    }
  }
}

}  // namespace
}  // namespace heed::test::split
