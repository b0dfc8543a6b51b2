// SPDX-License-Identifier: BSD-3-Clause
#include "core/floating_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <limits>

#include "core/dtypes.h"
#include "core/plain.h"

namespace heed::detail {

namespace {

double least_of(at::ScalarType dtype) {
  switch (dtype) {
#define HEED_CASE(name, type, compute_type, torch_name) \
  case at::ScalarType::torch_name:                      \
    return static_cast<double>(                         \
        std::numeric_limits<                            \
            c10::impl::ScalarTypeToCPPTypeT<at::ScalarType::torch_name>>::lowest());
    HEED_ELEMENT_TYPES(HEED_CASE)
#undef HEED_CASE
    default:
      return -std::numeric_limits<double>::infinity();
  }
}

}  // namespace

FloatingMask read_floating_mask(const at::Tensor& mask) {
  const at::NoGradGuard no_grad;
  const auto holds_only = [](const at::Tensor& match) { return match.all().item<bool>(); };
  const auto zero = mask.eq(0);
  if (holds_only(zero)) return FloatingMask::zeros;
  if (holds_only(zero.logical_or(mask.eq(1)))) return FloatingMask::zeros_and_ones;
  const auto least = mask.le(least_of(mask.scalar_type()));
  return holds_only(zero.logical_or(least)) ? FloatingMask::additive : FloatingMask::others;
}

std::string advice_on(FloatingMask kind, const std::string& name, bool takes_bias) {
  const char* or_bias = takes_bias ? " or pass it as bias" : "";
  const char* or_scores = takes_bias ? ", or pass it as bias if it is added to the scores" : "";
  switch (kind) {
    case FloatingMask::zeros:
      return fmt::format(
          "; it holds 0 alone: if 0 shows, pass mask_from_additive({0}){1}; if 0 hides, pass "
          "{0} != 0",
          name, or_bias);
    case FloatingMask::zeros_and_ones:
      return fmt::format("; it holds 0 and 1: pass {0} != 0, or from_hidden({0}) if 1 hides", name);
    case FloatingMask::additive:
      return fmt::format("; it holds 0 and -inf or the least number: pass mask_from_additive({}){}",
                         name, or_bias);
    case FloatingMask::others:
      return takes_bias
                 ? "; it holds other numbers than a mask: pass it as bias if it is added to the "
                   "scores"
                 : "; it holds other numbers than a mask";
    case FloatingMask::unread:
      break;
  }
  return fmt::format(
      "; pass {0} != 0 if it holds 0 and 1, from_hidden({0}) if 1 hides, "
      "mask_from_additive({0}) if it holds 0 and -inf{1}",
      name, or_scores);
}

std::string advice_on_mask(const at::Tensor& mask, const std::string& name, bool takes_bias) {
  if (!is_attention_dtype(mask.scalar_type())) return "";
  const bool is_readable = mask.is_cpu() && is_unwrapped(mask) && calls_reach_kernels();
  return advice_on(is_readable ? read_floating_mask(mask) : FloatingMask::unread, name, takes_bias);
}

}  // namespace heed::detail
