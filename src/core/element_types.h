#pragma once

/// What attention computes on, one line a type: its name here, its C++ type in cpu/isa, the type
/// that it is computed in there, and its name in LibTorch. Includes nothing, so that cpu/isa can
/// read it too.
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

constexpr ElementType kAllElementTypes[] = {
#define HEED_ELEMENT_TYPE(name, type, compute_type, torch_name) ElementType::name,
    HEED_ELEMENT_TYPES(HEED_ELEMENT_TYPE)
#undef HEED_ELEMENT_TYPE
};
constexpr int kElementTypes = sizeof(kAllElementTypes) / sizeof(ElementType);

}  // namespace heed::detail
