// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace heed::detail {

/// The meaning that the numbers of a floating mask suggest.
enum class FloatingMask {
  zeros,           // only 0: additive, or a mask that hides all or nothing
  zeros_and_ones,  // 1 shows, or 1 hides
  additive,        // 0, and -inf or the least number of the dtype: added to scores
  others,          // any other numbers, as a bias has
  unread,
};

/// Classifies a mask by its numbers. Its dtype must be one that attention takes. Waits for the
/// mask's device.
FloatingMask read_floating_mask(const at::Tensor& mask);

/// Advice that ends an error about a floating mask, by the numbers that the mask holds:
/// "; it holds 0 and 1: pass mask != 0, ...".
std::string advice_on(FloatingMask kind, const std::string& name, bool takes_bias);

/// advice_on a mask of any dtype; empty if the dtype is not floating. The mask is read only in the
/// CPU's memory.
std::string advice_on_mask(const at::Tensor& mask, const std::string& name, bool takes_bias);

}  // namespace heed::detail
