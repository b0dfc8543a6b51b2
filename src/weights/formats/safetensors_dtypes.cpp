// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/safetensors_dtypes.h"

#include <torch/version.h>

namespace heed::detail {

namespace {

struct SafetensorsDtype {
  std::string_view name;
  at::ScalarType type;
};

constexpr SafetensorsDtype kSafetensorsDtypes[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz},
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
    {"F8_E8M0", at::kFloat8_e8m0fnu},
#endif
    {"C64", at::kComplexFloat},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U64", at::kUInt64},
    {"U32", at::kUInt32},
    {"U16", at::kUInt16},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
};

}  // namespace

std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& dtype : kSafetensorsDtypes) {
    if (dtype.name == name) return dtype.type;
  }
  return std::nullopt;
}

std::optional<std::string_view> safetensors_name(at::ScalarType type) {
  for (const auto& dtype : kSafetensorsDtypes) {
    if (dtype.type == type) return dtype.name;
  }
  return std::nullopt;
}

}  // namespace heed::detail
