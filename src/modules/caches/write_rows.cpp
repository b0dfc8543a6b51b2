// SPDX-License-Identifier: BSD-3-Clause
#include "modules/caches/write_rows.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>

#include <algorithm>
#include <cstring>

#include "core/plain.h"

namespace heed::detail {

namespace {

constexpr int64_t kWorthAThread = 1 << 17;  // bytes

/// Writes rows [T, G, D] to pages on the CPU.
void copy_rows(const at::Tensor& pool, const int64_t* pages, const int64_t* slots,
               const at::Tensor& rows) {
  const auto groups = rows.size(1), size = pool.element_size(), bytes = rows.size(2) * size;
  auto* to = static_cast<char*>(pool.mutable_data_ptr());
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  const auto grain = std::max<int64_t>(1, kWorthAThread / (groups * bytes));
  at::parallel_for(0, rows.size(0), grain, [&](int64_t begin, int64_t end) {
    for (auto t = begin; t < end; ++t) {
      const auto place = pages[t] * pool.stride(0) + slots[t] * pool.stride(2);
      for (int64_t g = 0; g < groups; ++g) {
        std::memcpy(to + (place + g * pool.stride(1)) * size,
                    from + (t * rows.stride(0) + g * rows.stride(1)) * size,
                    static_cast<size_t>(bytes));
      }
    }
  });
}

}  // namespace

void write_rows(const at::Tensor& heads, int64_t first, const at::Tensor& rows) {
  if (rows.numel() == 0) return;
  if (!is_plain(rows) || rows.stride(3) != 1) {
    heads.narrow(2, first, rows.size(2)).copy_(rows);
    return;
  }
  const auto groups = rows.size(1), count = rows.size(2), size = heads.element_size();
  const auto bytes = static_cast<size_t>(rows.size(3) * size);
  auto* to = static_cast<char*>(heads.mutable_data_ptr());
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  const auto copy = [&](int64_t b, int64_t g) {
    const auto to_place = b * heads.stride(0) + g * heads.stride(1) + first * heads.stride(2);
    const auto from_place = b * rows.stride(0) + g * rows.stride(1);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + (to_place + i * heads.stride(2)) * size,
                  from + (from_place + i * rows.stride(2)) * size, bytes);
    }
  };
  const auto grain = std::max<int64_t>(1, kWorthAThread / (count * rows.size(3) * size));
  at::parallel_for(0, rows.size(0) * groups, grain, [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) copy(i / groups, i % groups);
  });
  heads.unsafeGetTensorImpl()->bump_version();
}

void write_rows(const at::Tensor& pool, const at::Tensor& pages, const at::Tensor& slots,
                const at::Tensor& rows) {
  if (rows.numel() == 0) return;
  auto own = rows.is_alias_of(pool) ? rows.clone() : rows;
  if (own.is_neg()) own = own.resolve_neg();
  if (pool.is_cpu()) {
    copy_rows(pool, pages.const_data_ptr<int64_t>(), slots.const_data_ptr<int64_t>(),
              own.stride(2) == 1 ? own : own.contiguous());
  } else {
    pool.transpose(1, 2).index_put_({pages, slots}, own);  // [P, page, G, D]
  }
}

}  // namespace heed::detail
