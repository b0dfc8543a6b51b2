// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

/// On the CPU, new keys and values are written to caches without operators of LibTorch, which would
/// take longer than the rest of a small model's step.

namespace heed::detail {

/// Writes rows [B, G, L, D] to places [first, first + L) of heads [B, G, capacity, D], which have
/// their dtype.
void write_rows(const at::Tensor& heads, int64_t first, const at::Tensor& rows);

/// Writes rows [T, G, D] to a pool [P, G, page, D], whose last stride must be 1: row t goes to the
/// slot slots[t] of the page pages[t]. `pages` and `slots` are int64 [T] on the pool's device.
void write_rows(const at::Tensor& pool, const at::Tensor& pages, const at::Tensor& slots,
                const at::Tensor& rows);

}  // namespace heed::detail
