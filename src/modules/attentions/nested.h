#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// Packed sequences: the form in which attend_varlen takes a nested tensor.
struct Packed {
  at::Tensor rows;     // [1, T, E]
  at::Tensor offsets;  // int64 [N + 1] on the CPU
};

/// Throws c10::ValueError when the tensor is not a nested one of matrices.
Packed pack(const char* function, const char* name, const at::Tensor& nested);

at::Tensor unpack(const Packed& packed);

}  // namespace heed::detail
