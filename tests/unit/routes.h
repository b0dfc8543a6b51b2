// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <heed/attend.h>

#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "attend/paths/paths.h"
#include "core/forced_path.h"
#include "cpu/block/block.h"
#include "cpu/capability.h"
#include "support/expect.h"

namespace heed::test {

/// A way for `attend` to compute.
struct Route {
  std::string name;
  std::optional<AttendPath> path;                           // none: the one that attend chooses
  const detail::InstructionSet* instruction_set = nullptr;  // null: the one in use
  std::optional<detail::BlockSizes> block_sizes;
  std::optional<int64_t> scores = {};  // of a block of queries
};

/// How GoogleTest shows a route.
inline void PrintTo(const Route& route, std::ostream* stream) { *stream << route.name; }

/// The dtypes of attention, and the names of tests that have one, or a route and one, as parameter:
/// INSTANTIATE_TEST_SUITE_P(Dtypes, Suite, kDtypes, kNamed).
inline const auto kDtypes = ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);

struct NameOfParameter {
  std::string operator()(const ::testing::TestParamInfo<at::ScalarType>& info) const {
    return c10::toString(info.param);
  }
  std::string operator()(
      const ::testing::TestParamInfo<std::tuple<Route, at::ScalarType>>& info) const {
    return std::get<0>(info.param).name + "_" + c10::toString(std::get<1>(info.param));
  }
};
inline constexpr NameOfParameter kNamed;

constexpr auto kNoKernels = "heed's kernels are switched off";

/// Tests of heed's kernels are skipped with HEED_CPU_CAPABILITY=none.
class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  }
};

/// Our path on all instruction sets that the machine has.
inline std::vector<Route> instruction_set_routes() {
  std::vector<Route> result;
  for (const auto* set : detail::instruction_sets()) {
    result.push_back({std::string("block_") + set->name, AttendPath::block, set, {}});
  }
  return result;
}

/// The chosen path, LibTorch's kernels, LibTorch's operators on as few queries as can be, and, for
/// tests of the CPU, ours on all instruction sets and in tiles so small that short sequences have
/// many.
inline std::vector<Route> routes() {
  std::vector<Route> result = {{"chosen", {}, {}, {}},
                               {"fused", AttendPath::fused, {}, {}},
                               {"query_blocks", AttendPath::query_blocks, {}, {}, 1}};
  if (devices().back().is_cuda()) {
    result.push_back({"flash", AttendPath::flash, {}, {}});
    result.push_back({"efficient", AttendPath::efficient, {}, {}});
  }
  if (!devices().front().is_cpu()) return result;
  for (const auto& route : instruction_set_routes()) result.push_back(route);
  result.push_back({"block_in_small_tiles", AttendPath::block, {}, detail::BlockSizes{4, 16}});
  return result;
}

/// Also LibTorch's operators on all queries at once, and ours for decoding.
inline std::vector<Route> all_routes() {
  auto result = routes();
  result.push_back({"math", AttendPath::math, {}, {}});
  result.push_back({"decode", AttendPath::decode, {}, {}});
  return result;
}

/// Puts a route in force while it lives.
class ScopedRoute {
 public:
  explicit ScopedRoute(const Route& route) {
    if (route.path) path_.emplace(*route.path);
    if (route.block_sizes) block_sizes_.emplace(*route.block_sizes);
    if (route.scores) scores_.emplace(*route.scores);
    if (route.instruction_set != nullptr) instruction_set_.emplace(*route.instruction_set);
  }
  ScopedRoute(const ScopedRoute&) = delete;
  ScopedRoute& operator=(const ScopedRoute&) = delete;

 private:
  std::optional<detail::ScopedPath> path_;
  std::optional<detail::ScopedBlockSizes> block_sizes_;
  std::optional<detail::query_blocks_path::ScopedScores> scores_;
  std::optional<detail::ScopedInstructionSet> instruction_set_;
};

}  // namespace heed::test
