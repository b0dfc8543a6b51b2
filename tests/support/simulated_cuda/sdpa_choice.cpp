// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <vector>

#include "support/simulated_cuda/attention_kernels.h"

/// The kernel that SDPA chooses.

namespace heed::test::kernels {

namespace {

using at::Tensor;

std::optional<int64_t>& preferred() {
  static std::optional<int64_t> choice;
  return choice;
}

/// The choices that an A100 can run: 0 math, 1 flash, 2 memory-efficient (SDPU, UCPP).
std::vector<int64_t> possible_choices(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const std::optional<Tensor>& mask, bool causal,
                                      bool enable_gqa) {
  const auto dtype = query.scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (query.dim() != 4 || (!half && dtype != at::kFloat)) return {0};
  const auto last_stride = [](const Tensor& x) { return x.stride(-1) == 1; };
  if (!last_stride(query) || !last_stride(key) || !last_stride(value)) return {0};
  if (query.size(2) == 0 || key.size(2) == 0) return {0};
  const bool has_mask = mask && mask->defined();
  const bool same_heads = query.size(1) == key.size(1);
  const bool grouped = enable_gqa && query.size(1) % key.size(1) == 0;
  const bool flash = half && !has_mask && query.size(3) == value.size(3) && query.size(3) <= 256 &&
                     (same_heads || grouped) && !(causal && query.size(2) != key.size(2));
  const auto elements = 16 / query.element_size();
  const bool aligned = query.size(3) % elements == 0 && value.size(3) % elements == 0;
  const bool good_mask = !has_mask || mask->stride(-1) == 1;
  std::vector<int64_t> choices;
  if (flash) choices.push_back(1);
  if (same_heads && aligned && good_mask) choices.push_back(2);
  choices.push_back(0);
  return choices;
}

/// The first that is possible and allowed.
int64_t sdpa_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                    const std::optional<Tensor>& mask, double /*dropout*/, bool causal,
                    std::optional<double> /*scale*/, bool enable_gqa) {
  if (preferred()) return *preferred();
  const auto& context = at::globalContext();
  const std::array<bool, 3> allowed = {context.userEnabledMathSDP(), context.userEnabledFlashSDP(),
                                       context.userEnabledMemEfficientSDP()};
  for (const auto choice : possible_choices(query, key, value, mask, causal, enable_gqa)) {
    if (allowed[static_cast<size_t>(choice)]) return choice;
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("_fused_sdp_choice", sdpa_choice); }

// SDPA asks here rather than the operator.
[[maybe_unused]] const bool kChoiceIsRegistered = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&sdpa_choice);
  return true;
}();

}  // namespace

}  // namespace heed::test::kernels

namespace heed::test {

PreferredSdpaKernel::PreferredSdpaKernel(int64_t choice) { kernels::preferred() = choice; }

PreferredSdpaKernel::~PreferredSdpaKernel() { kernels::preferred().reset(); }

}  // namespace heed::test
