// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <tuple>

namespace heed {

/// Joins attentions of the same queries to disjoint sets of keys into the attention to all of them.
/// The parts come from `attend_with_lse`: of a cached prefix and what follows it, or of the shares
/// of a sequence that several processes hold.
///
/// @code
/// auto [first, first_lse] = heed::attend_with_lse(query, prefix_key, prefix_value);
/// auto [second, second_lse] = heed::attend_with_lse(query, key, value, options);
/// auto [output, lse] = heed::merge_attention({first, second}, {first_lse, second_lse});
/// @endcode
///
/// Shapes:
///   outputs  [B, H, L, Dv] each, same dtype and device
///   lses     [B, H, L] each, float32, or float64 for float64 outputs
///   returns  {output [B, H, L, Dv], lse [B, H, L]}
/// A sink must be given to one part only. Gradients pass through.
/// Throws c10::ValueError when a number of parts, a shape, dtype or device is invalid.
HEED_API std::tuple<at::Tensor, at::Tensor> merge_attention(at::TensorList outputs,
                                                            at::TensorList lses);

}  // namespace heed
