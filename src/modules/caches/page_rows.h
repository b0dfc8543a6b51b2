#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// Writes row t of `rows` [T, G, D] to slot slots[t] of page pages[t] of `pool` [P, G, page, D],
/// whose last stride is 1; pages and slots are int64 [T] on the pool's device.
void write_rows(const at::Tensor& pool, const at::Tensor& pages, const at::Tensor& slots,
                const at::Tensor& rows);

}  // namespace heed::detail
