#pragma once

#include <ATen/core/Tensor.h>

#include "core/problem.h"

namespace heed::detail {

/// Attention of few queries to many keys, on the CPU, for inference: keys and values are read once.
/// Takes float32, bfloat16 and float16 without dropout; the last strides of key and value are 1.
at::Tensor decode(const Problem& problem);

}  // namespace heed::detail
