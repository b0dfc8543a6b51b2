// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

namespace heed::detail {

/// Checks that a tensor of these sizes, none of which is negative, takes no more memory than a
/// processor can address. Whether this machine has so much memory is left to the allocator.
HEED_API void check_memory(const char* function, const char* name, at::IntArrayRef sizes,
                           at::ScalarType dtype);

}  // namespace heed::detail
