#pragma once

#include <algorithm>
#include <vector>

#include "core/problem.h"
#include "cpu/capability.h"
#include "cpu/tensor_rows.h"

/// Where a problem's keys and values lie: one after the other, or in pages; and what they are, if
/// they are int8.

namespace heed::detail {

/// Rows [first, first + count) of int8 keys or values, in the query's dtype. They lie in memory of
/// this thread until the next call.
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

/// Rows [first, first + count) of keys or values, which are the problem's member `tensor`.
inline Rows key_rows_at(const Problem& problem, const at::Tensor& tensor, int64_t batch,
                        int64_t group, int64_t first, int64_t count) {
  return problem.is_quantized() ? widened_rows(problem, tensor, batch, group, first, count)
                                : tensor_rows(tensor, batch, group, first, count);
}

/// Calls visit(batch, first, count) where keys of sequence b lie one after the other: they are
/// [batch, g, first + i] of keys and values.
template <typename Visit>
void for_each_stretch(const Problem& problem, int64_t b, KeyRange keys, const Visit& visit) {
  if (!problem.pages) return visit(b, keys.first, keys.last - keys.first);
  const auto page_size = problem.key.size(2);
  for (auto key = keys.first; key < keys.last;) {
    const auto first = key % page_size;
    const auto count = std::min(page_size - first, keys.last - key);
    visit(problem.pages->page(b, key / page_size), first, count);
    key += count;
  }
}

/// Calls visit(rows, n) for keys or values, the problem's member `tensor`, of sequence b and group
/// g where they lie one after the other; n counts those before.
template <typename Visit>
void for_each_piece(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                    KeyRange keys, const Visit& visit) {
  int64_t n = 0;
  for_each_stretch(problem, b, keys, [&](int64_t batch, int64_t first, int64_t count) {
    visit(key_rows_at(problem, tensor, batch, g, first, count), n);
    n += count;
  });
}

/// Adds where each of their rows begins in memory.
inline void add_addresses(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                          KeyRange keys, std::vector<const char*>& rows) {
  for_each_stretch(problem, b, keys, [&](int64_t batch, int64_t first, int64_t count) {
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
  for_each_piece(problem, tensor, b, g, {key, key + 1},
                 [&](const Rows& rows, int64_t /*n*/) { row = rows; });
  return row;
}

}  // namespace heed::detail
