// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// Writes rows [T, G, D] to a pool [P, G, page, D], whose last stride must be 1: row t goes to the
/// slot slots[t] of the page pages[t]. `pages` and `slots` are int64 [T] on the pool's device.
void write_rows(const at::Tensor& pool, const at::Tensor& pages, const at::Tensor& slots,
                const at::Tensor& rows);

}  // namespace heed::detail
