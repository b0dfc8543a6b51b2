// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "attend/paths/paths.h"
#include "cuda/calls.h"
#include "support/expect.h"
#include "support/simulated_cuda/simulated_cuda.h"

/// Which path each kind of call takes, and what it costs.

namespace heed::test::of_routes {
namespace {

std::string full_name(const CudaCall& call) {
  return std::string(c10::toString(call.dtype)) + ", " + call.name;
}

TEST(CudaRoutes, AreTakenAsTheyAreNamed) {
  for (const auto& call : cuda_calls()) {
    const auto inputs = inputs_of(call);
    const WorkOfDevice device;
    EXPECT_EQ(to_string(attend_path(inputs, call.options)), to_string(call.path))
        << full_name(call);
    attend(inputs, call.options);
    const auto ran = device.work().operators;
    const auto has = [&](const char* name) { return ran.count(name) > 0; };
    EXPECT_EQ(has("aten::_flash_attention_forward") ||
                  has("aten::_scaled_dot_product_flash_attention") ||
                  has("aten::_efficient_attention_forward") ||
                  has("aten::_scaled_dot_product_efficient_attention"),
              call.path != AttendPath::query_blocks)
        << full_name(call);
  }
}

TEST(CudaRoutes, UseNoKernelThatTheUserSwitchedOff) {
  auto& context = at::globalContext();
  const auto inputs = inputs_of({"plain", at::kHalf, Sizes{}, {}, AttendPath::fused});
  const auto expect_paths = [&](const char* plain, const char* window) {
    const auto path = [&](const AttendOptions& options) {
      return to_string(attend_path(inputs, options));
    };
    EXPECT_EQ(path({}), plain);
    EXPECT_EQ(path(AttendOptions().causal(true).window(2)), window);
  };
  expect_paths("fused", "flash");
  context.setSDPUseFlash(false);
  expect_paths("fused", "efficient");
  context.setSDPUseMemEfficient(false);
  expect_paths("query_blocks", "query_blocks");
  context.setSDPUseMath(false);
  expect_paths("query_blocks", "query_blocks");
  context.setSDPUseFlash(true);
  context.setSDPUseMemEfficient(true);
  context.setSDPUseMath(true);
}

/// FlashAttention has heads up to 256 elements.
TEST(CudaRoutes, TakeTheWidestHeadsOfFlash) {
  const auto path_of = [](int64_t head_dim, int64_t value_head_dim) {
    Sizes sizes;
    sizes.D = head_dim;
    sizes.Dv = value_head_dim;
    const auto options = AttendOptions().causal(true).window(2);
    return attend_path(inputs_of({"window", at::kHalf, sizes, options, {}}), options);
  };
  EXPECT_EQ(path_of(256, 256), AttendPath::flash);
  EXPECT_NE(path_of(264, 8), AttendPath::flash);
  EXPECT_NE(path_of(8, 264), AttendPath::flash);
}

/// cuDNN's kernel takes values that are narrower than keys. SDPA's other kernels would pad them, as
/// heed does.
TEST(CudaRoutes, LeaveNarrowValuesToCudnn) {
  Sizes sizes;
  sizes.D = 192;
  sizes.Dv = 128;
  const auto options = AttendOptions().causal(true);
  sizes.L = sizes.S;
  const auto inputs = inputs_of({"narrow values", at::kHalf, sizes, options, {}});
  EXPECT_EQ(attend_path(inputs, options), AttendPath::flash);
  const PreferredSdpaKernel cudnn(3);
  EXPECT_EQ(attend_path(inputs, options), AttendPath::fused);
}

/// The kernel "flash" shows too few keys to queries before the first key, in windows that are open
/// to the right or wider than all keys.
TEST(CudaRoutes, LeaveWideWindowsOfFewKeysToOperators) {
  const auto path_of = [](int64_t length, int64_t keys, const AttendOptions& options) {
    Sizes sizes;
    sizes.L = length;
    sizes.S = keys;
    return attend_path(inputs_of({"window", at::kHalf, sizes, options, {}}), options);
  };
  const auto left = AttendOptions().left_window(2);
  const auto right = [](int64_t window) { return AttendOptions().right_window(window); };
  EXPECT_EQ(path_of(5, 9, left), AttendPath::flash);
  EXPECT_EQ(path_of(9, 5, left), AttendPath::query_blocks);
  EXPECT_EQ(path_of(9, 5, right(4)), AttendPath::flash);
  EXPECT_EQ(path_of(9, 5, right(5)), AttendPath::query_blocks);
  EXPECT_EQ(path_of(9, 5, AttendOptions().causal(true).left_window(2)), AttendPath::flash);
}

/// For wider heads the kernel "efficient" leaves the output of a query without keys unwritten.
TEST(CudaRoutes, PackSequencesWithoutKeysOnlyInNarrowHeads) {
  const auto takes_kernel = [](int64_t head_dim, int64_t value_head_dim) {
    const auto rows = [](int64_t count, int64_t columns) {
      return at::rand({count, 2, columns}).to(cuda());
    };
    const auto query_offsets = at::tensor({0, 2, 5}, at::kLong);
    const auto key_offsets = at::tensor({0, 0, 4}, at::kLong);
    const WorkOfDevice device;
    attend_varlen(rows(5, head_dim), rows(4, head_dim), rows(4, value_head_dim), query_offsets,
                  key_offsets);
    return device.work().operators.count("aten::_efficient_attention_forward") > 0;
  };
  EXPECT_TRUE(takes_kernel(128, 128));
  EXPECT_FALSE(takes_kernel(128, 136));
  EXPECT_FALSE(takes_kernel(136, 128));
}

/// The first call of a kind is checked.
DeviceWork work_of_second_call(const CudaCall& call) {
  const auto inputs = inputs_of(call);
  const auto& s = call.sizes;
  const auto gradient = at::ones({s.B, s.H, s.L, s.Dv}, at::device(cuda()).dtype(call.dtype));
  const auto run = [&] {
    const auto output = attend(inputs, call.options);
    if (call.training) {
      torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {gradient});
    }
  };
  run();
  const WorkOfDevice device;
  run();
  return device.work();
}

TEST(CudaRoutes, WaitForNothing) {
  for (const auto& call : cuda_calls()) {
    const auto waits = work_of_second_call(call).waits;
    EXPECT_TRUE(waits.empty()) << full_name(call) << ": " << waits.begin()->first;
  }
}

/// The second derivatives are those of a sum of gradients, by query, beside the CPU's in float64.
TEST(CudaRoutes, HaveSecondDerivatives) {
  for (const auto& call : cuda_calls(/*length=*/10)) {
    if (!call.training || call.dtype != at::kFloat || call.options.dropout() > 0.0) continue;
    const auto given = inputs_of(call);
    const auto second = [&](at::Device place, at::ScalarType dtype) {
      const auto inputs = copies_on(place, dtype, call, given);
      const auto first = torch::autograd::grad({attend(inputs, inputs.options).square().sum()},
                                               {inputs.query, inputs.key, inputs.value}, {}, true,
                                               /*create_graph=*/true);
      return torch::autograd::grad({first[0].sum() + first[1].sum() + first[2].square().sum()},
                                   {inputs.query})[0];
    };
    // Sums of up to 34 products of gradients.
    EXPECT_TRUE(is_close(second(cuda(), at::kFloat), second(at::kCPU, at::kDouble), 1e-3))
        << call.name;
  }
}

/// Twice the length takes no more than about twice the memory.
TEST(CudaRoutes, TakeNoMemoryForAllScores) {
  const detail::query_blocks_path::ScopedScores few(1);
  const auto longer = cuda_calls(512), shorter = cuda_calls(256);
  const auto peak = [](const CudaCall& call) {
    return static_cast<double>(work_of_second_call(call).peak_bytes);
  };
  for (size_t i = 0; i < longer.size(); ++i) {
    const bool has_scores = longer[i].options.bias() || longer[i].options.mask();
    if (has_scores || !longer[i].training || longer[i].dtype == at::kBFloat16) continue;
    EXPECT_LT(peak(longer[i]), 2.6 * peak(shorter[i])) << full_name(longer[i]);
  }
}

}  // namespace
}  // namespace heed::test::of_routes
