// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include "attend/paged_call.h"

namespace heed::detail {

/// `attend_paged` for sequences that have been checked: all other arguments are. The options'
/// parents must be those of the call, or absent.
at::Tensor attend_paged(const at::Tensor& query, const at::Tensor& key_pages,
                        const at::Tensor& value_pages, const PagedCall& call,
                        const AttendOptions& options);

}  // namespace heed::detail
