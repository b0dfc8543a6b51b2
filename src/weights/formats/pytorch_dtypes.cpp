// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pytorch_dtypes.h"

#include <torch/version.h>

namespace heed::detail {

namespace {

struct PytorchDtype {
  std::string_view storage, name;
  int64_t number;  // of torch.export
  at::ScalarType type;
};

constexpr PytorchDtype kPytorchDtypes[] = {
    {"torch.DoubleStorage", "torch.float64", 8, at::kDouble},
    {"torch.FloatStorage", "torch.float32", 7, at::kFloat},
    {"torch.HalfStorage", "torch.float16", 6, at::kHalf},
    {"torch.BFloat16Storage", "torch.bfloat16", 13, at::kBFloat16},
    {"torch.Float8_e4m3fnStorage", "torch.float8_e4m3fn", 29, at::kFloat8_e4m3fn},
    {"torch.Float8_e4m3fnuzStorage", "torch.float8_e4m3fnuz", 31, at::kFloat8_e4m3fnuz},
    {"torch.Float8_e5m2Storage", "torch.float8_e5m2", 30, at::kFloat8_e5m2},
    {"torch.Float8_e5m2fnuzStorage", "torch.float8_e5m2fnuz", 32, at::kFloat8_e5m2fnuz},
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
    {"torch.Float8_e8m0fnuStorage", "torch.float8_e8m0fnu", 33, at::kFloat8_e8m0fnu},
#endif
    {"torch.ComplexDoubleStorage", "torch.complex128", 11, at::kComplexDouble},
    {"torch.ComplexFloatStorage", "torch.complex64", 10, at::kComplexFloat},
    {"torch.ComplexHalfStorage", "torch.complex32", 9, at::kComplexHalf},
    {"torch.LongStorage", "torch.int64", 5, at::kLong},
    {"torch.IntStorage", "torch.int32", 4, at::kInt},
    {"torch.ShortStorage", "torch.int16", 3, at::kShort},
    {"torch.CharStorage", "torch.int8", 2, at::kChar},
    {"torch.UInt64Storage", "torch.uint64", 35, at::kUInt64},
    {"torch.UInt32Storage", "torch.uint32", 34, at::kUInt32},
    {"torch.UInt16Storage", "torch.uint16", 28, at::kUInt16},
    {"torch.ByteStorage", "torch.uint8", 1, at::kByte},
    {"torch.BoolStorage", "torch.bool", 12, at::kBool},
};

template <typename Field>
std::optional<at::ScalarType> dtype_with(Field PytorchDtype::*field, const Field& wanted) {
  for (const auto& dtype : kPytorchDtypes) {
    if (dtype.*field == wanted) return dtype.type;
  }
  return std::nullopt;
}

}  // namespace

std::optional<at::ScalarType> dtype_of_storage(std::string_view name) {
  return dtype_with(&PytorchDtype::storage, name);
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  return dtype_with(&PytorchDtype::name, name);
}

std::optional<at::ScalarType> dtype_numbered(int64_t number) {
  return dtype_with(&PytorchDtype::number, number);
}

std::string_view pytorch_name(at::ScalarType dtype) {
  for (const auto& known : kPytorchDtypes) {
    if (known.type == dtype) return known.name;
  }
  return {};
}

}  // namespace heed::detail
