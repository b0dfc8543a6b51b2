// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/cuda/trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <new>

#include "cuda/calls.h"
#include "support/expect.h"
#include "support/seeds.h"
#include "support/simulated_cuda/attention_kernels.h"
#include "support/warnings.h"

/// Kernels that do not compute what heed counts on.

namespace heed::test::of_trust {
namespace {

using detail::Kernel;

class ScopedRoutes {
 public:
  explicit ScopedRoutes(const char* value) { setenv("HEED_CUDA_ROUTES", value, 1); }
  ~ScopedRoutes() { unsetenv("HEED_CUDA_ROUTES"); }
  ScopedRoutes(const ScopedRoutes&) = delete;
  ScopedRoutes& operator=(const ScopedRoutes&) = delete;
};

struct Results {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

Results compute(const CudaCall& call, const Inputs& given, at::Device device,
                at::ScalarType dtype) {
  const auto inputs = copies_on(device, dtype, call, given);
  Results results;
  results.output = attend(inputs, inputs.options);
  if (call.training) {
    results.gradients =
        torch::autograd::grad({results.output.sum()}, {inputs.query, inputs.key, inputs.value});
  }
  return results;
}

void expect_right(const CudaCall& call) {
  const auto inputs = inputs_of(call);
  const auto found = compute(call, inputs, cuda(), call.dtype);
  const auto exact = compute(call, inputs, at::kCPU, at::kDouble);
  const auto tolerance = 64 * unit_roundoff(call.dtype);  // of sums of up to 72 gradients
  EXPECT_TRUE(is_close(found.output, exact.output, tolerance)) << call.name;
  EXPECT_TRUE(are_close(found.gradients, exact.gradients, tolerance)) << call.name;
}

AttendPath path_of(const CudaCall& call) {
  const auto inputs = inputs_of(call);
  return attend_path(inputs, call.options);
}

CudaCall call_of(const char* name, at::ScalarType dtype, const Sizes& sizes,
                 const AttendOptions& options, bool training = false) {
  return {name, dtype, sizes, options, AttendPath::flash, training};
}

struct Break {
  const char* kernel;
  KernelFault fault;
  CudaCall call;
  AttendPath path;  // that is taken instead
  std::string use, reason;

  std::string warning() const { return "heed does not use " + use + " on cuda:0: " + reason; }
};

constexpr auto kFlash = "aten::_flash_attention_forward";
constexpr auto kFlashBackward = "aten::_flash_attention_backward";
constexpr auto kEfficient = "aten::_efficient_attention_forward";
constexpr auto kEfficientBackward = "aten::_efficient_attention_backward";

std::vector<Break> breaks() {
  const Sizes same{2, 4, 2, 50, 50, 16, 16}, longer{2, 4, 2, 50, 70, 16, 16},
      blind{2, 4, 2, 70, 50, 16, 16};
  const auto window = AttendOptions().causal(true).window(9);
  const auto causal = AttendOptions().causal(true);
  const std::string kOutput = "the output differs from that of LibTorch's operators by",
                    kGradient = "a gradient differs from that of LibTorch's operators by";
  return {
      {kFlash, KernelFault::window, call_of("window", at::kHalf, same, window),
       AttendPath::efficient, "flash (Half, head dims 16 and 16, causal, window, grouped)",
       kOutput},
      {kFlash, KernelFault::top_left, call_of("causal", at::kHalf, longer, causal),
       AttendPath::efficient, "flash (Half, head dims 16 and 16, causal, grouped)", kOutput},
      {kFlash, KernelFault::nan_rows, call_of("blind", at::kBFloat16, blind, causal),
       AttendPath::efficient, "flash (BFloat16, head dims 16 and 16, causal, grouped)",
       kOutput + " inf"},
      {kFlash, KernelFault::throws, call_of("throws", at::kHalf, longer, causal),
       AttendPath::efficient, "flash (Half, head dims 16 and 16, causal, grouped)",
       "it throws: aten::_flash_attention_forward: CUDA error: an illegal instruction"},
      {kFlashBackward, KernelFault::window, call_of("window", at::kHalf, same, window, true),
       AttendPath::efficient,
       "flash (Half, head dims 16 and 16, causal, window, grouped, gradients)", kGradient},
      {kFlashBackward, KernelFault::throws, call_of("throws", at::kHalf, longer, causal, true),
       AttendPath::efficient, "flash (Half, head dims 16 and 16, causal, grouped, gradients)",
       "it throws: aten::_flash_attention_backward: CUDA error: an illegal instruction"},
      {kEfficient, KernelFault::window, call_of("window", at::kFloat, same, window),
       AttendPath::query_blocks, "efficient (Float, head dims 16 and 16, causal, window, grouped)",
       kOutput},
      {kEfficient, KernelFault::top_left, call_of("causal", at::kFloat, longer, causal),
       AttendPath::query_blocks, "efficient (Float, head dims 16 and 16, causal, grouped)",
       kOutput},
      {kEfficientBackward, KernelFault::top_left,
       call_of("causal", at::kFloat, longer, causal, true), AttendPath::query_blocks,
       "efficient (Float, head dims 16 and 16, causal, grouped, gradients)", kGradient},
      {kEfficient, KernelFault::nan_rows,
       call_of(
           "mask", at::kFloat, same,
           AttendOptions().causal(true).mask(at::arange(50).ge(3).to(cuda()).view({1, 1, 1, 50}))),
       AttendPath::query_blocks,
       "efficient (Float, head dims 16 and 16, causal, mask or bias, grouped)", kOutput + " inf"},
  };
}

/// A new process each.
class CudaTrust : public ::testing::Test {
 protected:
  void SetUp() override { detail::forget_trust(); }
  void TearDown() override { detail::forget_trust(); }
};

TEST_F(CudaTrust, IsLostByAWrongKernel) {
  for (const auto& b : breaks()) {
    detail::forget_trust();
    const BrokenKernel broken(b.kernel, b.fault);
    const Warnings warnings;
    EXPECT_EQ(to_string(path_of(b.call)), to_string(b.path)) << b.warning();
    expect_right(b.call);
    ASSERT_EQ(warnings.messages().size(), 1U) << b.warning();
    EXPECT_THAT(warnings.messages()[0], testing::StartsWith(b.warning()));
  }
}

TEST_F(CudaTrust, IsOfOneUse) {
  const BrokenKernel broken(kFlash, KernelFault::window);
  const Warnings warnings;
  const Sizes sizes{2, 4, 4, 50, 70, 16, 16};
  EXPECT_EQ(path_of(call_of("window", at::kHalf, sizes, AttendOptions().causal(true).window(9))),
            AttendPath::efficient);
  EXPECT_EQ(path_of(call_of("causal", at::kHalf, sizes, AttendOptions().causal(true))),
            AttendPath::flash);
}

TEST_F(CudaTrust, IsTestedOnceAndDrawsNoNumbers) {
  const auto call = call_of("dropout", at::kHalf, {2, 4, 4, 50, 50, 16, 16},
                            AttendOptions().causal(true).window(9).dropout(0.2), true);
  const auto inputs = inputs_of(call);
  const auto first_after = [&](bool is_new) {
    if (is_new) detail::forget_trust();
    torch::manual_seed(moved(5));
    return attend(inputs, call.options);
  };
  const auto first = first_after(true);
  EXPECT_TRUE(first_after(false).equal(first));
}

TEST_F(CudaTrust, LostLaterIsARefusalThatIsRoutedRound) {
  const auto call =
      call_of("later", at::kHalf, {2, 4, 2, 50, 70, 16, 16}, AttendOptions().causal(true), true);
  expect_right(call);
  for (const auto* kernel : {kFlash, kFlashBackward}) {
    const BrokenKernel broken(kernel, KernelFault::throws);
    const Warnings warnings;
    expect_right(call);
    ASSERT_EQ(warnings.messages().size(), 1U);
    EXPECT_EQ(
        warnings.messages()[0],
        "heed: flash (Half, head dims 16 and 16, causal, grouped, gradients) on cuda:0 throws, "
        "LibTorch's operators are used: " +
            std::string(kernel) + ": CUDA error: an illegal instruction");
  }
}

/// Neither at the first use of a kernel nor later.
TEST_F(CudaTrust, IsNotLostWhereMemoryRunsOut) {
  const auto call =
      call_of("memory", at::kHalf, {2, 4, 2, 50, 70, 16, 16}, AttendOptions().causal(true));
  const Warnings warnings;
  for (const bool first : {true, false}) {
    {
      const BrokenKernel broken(kFlash, KernelFault::no_memory);
      EXPECT_THROW(attend(inputs_of(call), call.options), std::bad_alloc) << first;
    }
    EXPECT_EQ(path_of(call), AttendPath::flash) << first;
  }
  EXPECT_THAT(warnings.messages(), testing::IsEmpty());
}

TEST_F(CudaTrust, IsNotNeededForSafeRoutes) {
  const ScopedRoutes safe("safe");
  for (const auto& call : cuda_calls()) {
    const auto path = path_of(call);
    EXPECT_TRUE(path == AttendPath::fused || path == AttendPath::query_blocks) << call.name;
  }
}

TEST_F(CudaTrust, IsNotGivenWhereEachCallIsVerified) {
  for (const auto& b : breaks()) {
    expect_right(b.call);  // trusted from here on
    const BrokenKernel broken(b.kernel, b.fault);
    const ScopedRoutes verify("verify");
    const Warnings warnings;
    expect_right(b.call);
    ASSERT_FALSE(warnings.messages().empty()) << b.warning();
    EXPECT_THAT(warnings.messages()[0], testing::StartsWith("heed: ")) << b.warning();
  }
}

TEST_F(CudaTrust, VerifiesRightCallsInSilence) {
  const ScopedRoutes verify("verify");
  const Warnings warnings;
  for (const auto& call : cuda_calls()) {
    const auto output = attend(inputs_of(call), call.options);
    if (call.training) output.sum().backward();
  }
  EXPECT_THAT(warnings.messages(), testing::IsEmpty());
}

TEST_F(CudaTrust, KnowsItsVariable) {
  const ScopedRoutes unknown("fastest");
  const Warnings warnings;
  EXPECT_EQ(detail::cuda_routes(), detail::CudaRoutes::fast);
  EXPECT_THAT(warnings.messages(),
              testing::ElementsAre("HEED_CUDA_ROUTES (fastest) is ignored: it must "
                                   "be safe or verify"));
}

}  // namespace
}  // namespace heed::test::of_trust
