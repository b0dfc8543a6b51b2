#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace heed::detail {

/// The meaning that the numbers of a floating mask suggest.
enum class FloatingMask {
  zeros,           // 0 alone: additive, or nothing is seen, or nothing is hidden
  zeros_and_ones,  // compared with 0, or turned around
  additive,        // 0 and -inf, or the least number of its dtype: added to scores
  others,          // scores
  unread,
};

/// Reads the mask, of a dtype that attention takes; waits for its device.
FloatingMask read_floating_mask(const at::Tensor& mask);

/// How errors go on that refuse a floating mask: "; it holds 0 and 1: pass mask != 0, ..". They
/// advise what the numbers allow.
std::string advice_on(FloatingMask kind, const std::string& name, bool takes_bias);

/// advice_on a mask of any dtype, which is read if it is a floating one in the CPU's memory.
std::string advice_on_mask(const at::Tensor& mask, const std::string& name, bool takes_bias);

}  // namespace heed::detail
