// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// An uninitialized tensor on the CPU for numbers of a packed weight. Large ones lie in huge pages
/// where the system has them: a step of a model reads all its weights, and a processor knows the
/// addresses of few small pages at a time.
at::Tensor packed_memory(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace heed::detail
