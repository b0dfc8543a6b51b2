// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/ScalarType.h>

#include <limits>
#include <optional>
#include <string>

#include "core/element_types.h"

namespace heed::detail {

/// The element type of a dtype, or nullopt if attention does not take the dtype.
inline std::optional<ElementType> element_type(at::ScalarType dtype) {
  switch (dtype) {
#define HEED_CASE(name, type, compute_type, torch_name) \
  case at::ScalarType::torch_name:                      \
    return ElementType::name;
    HEED_ELEMENT_TYPES(HEED_CASE)
#undef HEED_CASE
    default:
      return std::nullopt;
  }
}

/// Whether attention and the kernels take this dtype.
inline bool is_attention_dtype(at::ScalarType dtype) { return element_type(dtype).has_value(); }

/// The dtype in which numbers of this dtype are computed: float64 for float64, float32 for all
/// others.
inline at::ScalarType compute_dtype(at::ScalarType dtype) {
  switch (dtype) {
#define HEED_CASE(name, type, compute_type, torch_name) \
  case at::ScalarType::torch_name:                      \
    return c10::CppTypeToScalarType<compute_type>::value;
    HEED_ELEMENT_TYPES(HEED_CASE)
#undef HEED_CASE
    default:
      return at::kFloat;
  }
}

/// The largest number of compute_dtype(dtype).
inline double largest_computed(at::ScalarType dtype) {
  return compute_dtype(dtype) == at::kDouble ? std::numeric_limits<double>::max()
                                             : std::numeric_limits<float>::max();
}

/// The names of attention's dtypes for errors: "Float, Double, BFloat16 or Half".
std::string attention_dtypes();

}  // namespace heed::detail
