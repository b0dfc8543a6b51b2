#pragma once

#include <algorithm>

#include "core/problem.h"
#include "cpu/tensor_rows.h"

/// Where a problem's keys and values lie: one after the other, or in pages.

namespace heed::detail {

/// Calls visit(rows, n) for keys or values `tensor` of sequence b and group g where they lie one
/// after the other; n counts those before.
template <typename Visit>
void for_each_piece(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                    KeyRange keys, const Visit& visit) {
  if (!problem.pages) {
    visit(tensor_rows(tensor, b, g, keys.first, keys.last - keys.first), int64_t{0});
    return;
  }
  const auto page_size = tensor.size(2);
  for (auto key = keys.first; key < keys.last;) {
    const auto first = key % page_size;
    const auto count = std::min(page_size - first, keys.last - key);
    const auto page = problem.pages->page(b, key / page_size);
    visit(tensor_rows(tensor, page, g, first, count), key - keys.first);
    key += count;
  }
}

inline Rows key_row(const Problem& problem, const at::Tensor& tensor, int64_t b, int64_t g,
                    int64_t key) {
  Rows row;
  for_each_piece(problem, tensor, b, g, {key, key + 1},
                 [&](const Rows& rows, int64_t /*n*/) { row = rows; });
  return row;
}

}  // namespace heed::detail
