#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// silu(gate) * up, of the same shape; on the CPU in one pass.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace heed::detail
