#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "cpu/block/tile.h"

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
      tile_.for_each_part([&](int64_t /*row*/, int64_t rows, int64_t /*column*/, int64_t columns) {
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

/// Of each task, in the order in which threads take them.
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
      for (int64_t keys = 0; keys < layout.key_blocks(); ++keys) {
        cost += tiles.of(layout.query_task(n), keys);
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

double unevenness(const detail::Problem& problem, LayoutUse use, int64_t threads) {
  const BlockLayout layout(problem, use, threads);
  const auto useful = detail::useful_threads(layout.multiply_adds(), threads);
  return busiest(task_costs(layout, use), useful);
}

/// Counted, not timed.
TEST(SplitOfWork, IsEven) {
  for (const auto use : {LayoutUse::forward, LayoutUse::backward}) {
    for (const bool causal : {false, true}) {
      for (int64_t heads = 1; heads <= 64; ++heads) {
        const auto problem = make_problem(heads, 2048, causal);
        for (const int64_t threads : {1, 2, 4, 8, 16, 64}) {
          // One head's 64 blocks of keys, the largest twice the mean.
          const bool too_few = use == LayoutUse::backward && causal && heads == 1 && threads == 64;
          EXPECT_LE(unevenness(problem, use, threads), too_few ? 2 : 1.15)
              << (use == LayoutUse::backward ? "backward" : "forward") << ", " << heads
              << (causal ? " causal" : "") << " heads, " << threads << " threads";
        }
      }
    }
  }
}

/// Short sequences have few tasks, but even those are shared where there are enough.
TEST(SplitOfWork, IsEvenWhereSequencesAreShort) {
  for (const bool causal : {false, true}) {
    for (const int64_t heads : {1, 2, 8}) {
      const auto problem = make_problem(heads, 512, causal);
      for (const int64_t threads : {2, 4, 8}) {
        EXPECT_LE(unevenness(problem, LayoutUse::forward, threads), 1.05);
        EXPECT_LE(unevenness(problem, LayoutUse::backward, threads), 1.05);
      }
    }
  }
}

/// All tasks, each once.
TEST(SplitOfWork, HasEveryTaskOnce) {
  for (const int64_t heads : {1, 3, 48}) {
    const auto problem = make_problem(heads, 500, /*causal=*/true);
    for (const int64_t threads : {1, 5, 64}) {
      const BlockLayout forward(problem, LayoutUse::forward, threads);
      std::vector<int64_t> rows(static_cast<size_t>(heads * 500));
      for (int64_t n = 0; n < forward.tasks(); ++n) {
        const auto block = forward.query_task(n);
        for (int64_t r = 0; r < block.rows(); ++r) {
          ++rows[static_cast<size_t>(forward.first_row(block) + r)];
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
