// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <vector>

#include "core/problem.h"
#include "cpu/capability.h"
#include "cpu/tensor_rows.h"

/// Access to keys and values in runs of rows with one stride. The keys of a sequence lie one
/// after the other in [B, G, S, D], or in pages of a pool [P, G, page size, D]:
///
///   keys of sequence b  | 0 .. page size - 1 | page size .. |  ..   last |
///   page of the pool    |    table[b][0]     | table[b][1]  | table[b][2] |
///
///   for each page that the range of keys enters:        # without pages, the whole range at once
///     rows = its keys of the range; quantized ones are multiplied by their scales
///     visit(rows)
///
/// Attention over blocks packs keys this way. Decoding reads quantized keys itself
/// (docs/kernels.md, Decode).

namespace heed::detail {

/// Rows [first, first + count) of quantized keys or values times their scales, in the query's
/// dtype. They lie in memory of this thread until the next call.
inline Rows widened_rows(const Problem& problem, const at::Tensor& tensor, int64_t batch,
                         int64_t group, int64_t first, int64_t count) {
  thread_local std::vector<char> memory;
  const auto& scales = &tensor == &problem.key ? problem.key_scales : problem.value_scales;
  const auto numbers =
      batch * tensor.stride(0) + group * tensor.stride(1) + first * tensor.stride(2);
  const auto own = batch * scales.stride(0) + group * scales.stride(1) + first;
  const auto columns = tensor.size(3);
  memory.resize(static_cast<size_t>(count * columns * problem.query.element_size()));
  const Rows rows{memory.data(), element_type(problem.query), count, columns, columns, 1};
  instruction_set().matrix.widen(tensor.const_data_ptr<int8_t>() + numbers, tensor.stride(2),
                                 scales.const_data_ptr<float>() + own, rows);
  return rows;
}

/// Calls visit(batch, first, count) for each run of sequence b's `keys`: its key i is element
/// [batch, g, first + i] of the key and value tensors. With pages, `batch` is the page.
template <typename Visit>
void for_each_key_run(const Problem& problem, int64_t b, KeyRange keys, const Visit& visit) {
  const auto* paged = problem.paged();
  if (!paged) return visit(b, keys.first, keys.last - keys.first);
  const auto page_size = problem.key.size(2);
  for (auto key = keys.first; key < keys.last;) {
    const auto first = key % page_size;
    const auto count = std::min(page_size - first, keys.last - key);
    visit(paged->page(b, key / page_size), first, count);
    key += count;
  }
}

/// Calls visit(rows, n) for each run of `keys` of sequence b and group g: `rows` are its rows
/// of `tensor`, the problem's key or value, and n of the keys come before it.
template <typename Visit>
void for_each_run(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                  KeyRange keys, const Visit& visit) {
  int64_t n = 0;
  for_each_key_run(problem, b, keys, [&](int64_t batch, int64_t first, int64_t count) {
    visit(problem.is_quantized() ? widened_rows(problem, tensor, batch, g, first, count)
                                 : tensor_rows(tensor, batch, g, first, count),
          n);
    n += count;
  });
}

/// Appends the address of each key's row in `tensor` to `rows`.
inline void add_addresses(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                          KeyRange keys, std::vector<const char*>& rows) {
  for_each_key_run(problem, b, keys, [&](int64_t batch, int64_t first, int64_t count) {
    const auto* row = row_address(tensor, batch, g, first);
    const auto row_bytes = tensor.stride(2) * tensor.element_size();
    auto n = rows.size();
    rows.resize(n + static_cast<size_t>(count));
    for (; n < rows.size(); ++n, row += row_bytes) rows[n] = row;
  });
}

inline Rows key_row(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                    int64_t key) {
  Rows row;
  for_each_run(problem, tensor, b, g, {key, key + 1},
               [&](const Rows& rows, int64_t /*n*/) { row = rows; });
  return row;
}

}  // namespace heed::detail
