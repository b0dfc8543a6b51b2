// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "core/problem.h"

namespace heed::detail {

/// Whether there are kernels that decode this dtype.
bool decodes(at::ScalarType dtype);

struct DecodeOutput {
  at::Tensor output;  // [B, H, L, Dv]
  at::Tensor lse;     // [B, H, L], float32; undefined unless wanted
};

/// Attention of few queries to many keys, on the CPU, for inference: keys and values are read
/// once. Takes problems without dropout, with a dtype for which `decodes` is true, and with a last
/// stride of 1 in key and value.
DecodeOutput decode(const Problem& problem);

}  // namespace heed::detail
