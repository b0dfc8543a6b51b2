// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// The sequences of a nested tensor in packed form, for attend_varlen.
struct Packed {
  at::Tensor rows;     // [1, T, E]
  at::Tensor offsets;  // int64 [N + 1] on the CPU
};

/// Packs a nested tensor. Throws c10::ValueError unless it is nested and its sequences are
/// matrices.
Packed pack(const char* function, const char* name, const at::Tensor& nested);

at::Tensor unpack(const Packed& packed);

}  // namespace heed::detail
