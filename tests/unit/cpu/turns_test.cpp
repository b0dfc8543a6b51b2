// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/turns.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>

#include <future>
#include <stdexcept>
#include <thread>

namespace heed::detail {
namespace {

Problem problem_of(int64_t length) {
  const auto heads = at::zeros({1, 1, length, 16});
  return make_problem("attend", heads, heads, heads, {});
}

TEST(GradientTurns, ComeOneAfterTheOther) {
  const auto problem = problem_of(2048);
  const BlockLayout layout(problem, LayoutUse::backward, /*threads=*/1);
  ASSERT_GE(layout.key_blocks(), 2);
  GradientTurns turns(layout);
  EXPECT_TRUE(turns.wait(0, 0));
  turns.pass_on(0, 0);
  EXPECT_TRUE(turns.wait(0, 1));
}

/// Before, the other thread waited for ever.
TEST(GradientTurns, EndWhenATaskThrows) {
  const auto problem = problem_of(2048);
  const BlockLayout layout(problem, LayoutUse::backward, /*threads=*/1);
  GradientTurns turns(layout);
  bool was_its_turn = true;
  std::promise<void> begun;
  std::thread other([&] {
    turns.run([&] {
      begun.set_value();
      was_its_turn = turns.wait(0, 1);
    });
  });
  begun.get_future().wait();
  EXPECT_THROW(turns.run([] { throw std::runtime_error("no memory"); }), std::runtime_error);
  other.join();
  EXPECT_FALSE(was_its_turn);
  bool is_run = false;
  turns.run([&] { is_run = true; });
  EXPECT_FALSE(is_run);
}

}  // namespace
}  // namespace heed::detail
