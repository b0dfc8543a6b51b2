#pragma once

#include <ATen/core/Tensor.h>

#include "core/problem.h"

namespace heed::detail {

/// Whether there are kernels that decode this dtype.
bool decodes(at::ScalarType dtype);

/// Attention of few queries to many keys, on the CPU, for inference: keys and values are read once.
/// Takes problems without dropout whose dtype `decodes`, key and value with a last stride
/// of 1.
at::Tensor decode(const Problem& problem);

}  // namespace heed::detail
