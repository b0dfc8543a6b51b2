// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// The element types of attention. Each line has the type's name in heed, its C++ type in cpu/isa,
/// the C++ type in which it is computed there, and its name in LibTorch. This header includes
/// nothing, so that cpu/isa can include it too.
#define HEED_ELEMENT_TYPES(X)            \
  X(float32, float, float, Float)        \
  X(float64, double, double, Double)     \
  X(bfloat16, BFloat16, float, BFloat16) \
  X(float16, Half, float, Half)

namespace heed::detail {

enum class ElementType {
#define HEED_ELEMENT_TYPE(name, type, compute_type, torch_name) name,
  HEED_ELEMENT_TYPES(HEED_ELEMENT_TYPE)
#undef HEED_ELEMENT_TYPE
};

constexpr int kElementTypes = static_cast<int>(ElementType::float16) + 1;  // it is the last

}  // namespace heed::detail
