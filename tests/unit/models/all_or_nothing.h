// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/failing_memory.h"

namespace heed::test::of_failing_memory {

/// Numbers that tell a state; telling may change it.
using Told = std::vector<at::Tensor>;

inline at::Tensor numbers(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

/// `act` on what `make` makes either does all or, if memory fails at any point, nothing: afterwards
/// the state tells what it did before, and the same call succeeds.
template <typename Make, typename Act, typename Tell>
void expect_all_or_nothing(const std::string& name, const Make& make, const Act& act,
                           const Tell& tell) {
  auto untouched = make(), done = make();
  const auto before = tell(untouched);
  act(done);
  const auto after = tell(done);
  for (int64_t n = 0;; ++n) {
    auto state = make();
    if (!runs_out_of_memory(n, [&] { act(state); })) {
      EXPECT_TRUE(are_equal(tell(state), after)) << name << " with memory";
      return;
    }
    auto again = make();
    runs_out_of_memory(n, [&] { act(again); });
    act(again);
    EXPECT_TRUE(are_equal(tell(state), before)) << name << " after " << n << " allocations";
    EXPECT_TRUE(are_equal(tell(again), after)) << name << " again, after " << n << " allocations";
  }
}

}  // namespace heed::test::of_failing_memory
