#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "core/element_types.h"

namespace heed::detail {

/// The element type of a dtype; none for those that attention does not take.
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

/// What attention and the kernels take.
inline bool is_attention_dtype(at::ScalarType dtype) { return element_type(dtype).has_value(); }

/// What numbers of this dtype are computed in: float64 in itself, all others in float32.
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

/// "Float, Double, BFloat16 or Half", for errors.
std::string attention_dtypes();

}  // namespace heed::detail
