// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"
#include "cpu/isa/simd.h"

/// Loops over the elements of rows. Only for the sources of this folder.

namespace heed::detail::HEED_ISA {

template <typename Element>
inline Element* row_of(const Rows& rows, int64_t r) {
  return static_cast<Element*>(rows.data) + r * rows.row_stride;
}

/// Calls visit(load, store) for each whole vector of a row, then for each element that is left.
/// For an element, `load` puts it into all lanes of a vector, and `store` takes it from the first
/// lane.
template <typename T, typename Element, typename Visit>
inline void for_vectors(int64_t columns, const Visit& visit) {
  int64_t i = 0;
  for (; i + kLanes<T> <= columns; i += kLanes<T>) {
    visit([i](const Element* row) { return load(row + i); },
          [i](Element* row, Vec<T> v) { store(row + i, v); });
  }
  for (; i < columns; ++i) {
    visit([i](const Element* row) { return broadcast(T{widen(row[i])}); },
          [i](Element* row, Vec<T> v) { narrow(T{v[0]}, row + i); });
  }
}

/// A sum over a row: of_vector(i) for each whole vector, of_element(i) for the elements that are
/// left.
template <typename T, typename OfVector, typename OfElement>
inline T sum_over(int64_t columns, OfVector&& of_vector, OfElement&& of_element) {
  Vec<T> lanes = {};
  int64_t i = 0;
  for (; i + kLanes<T> <= columns; i += kLanes<T>) lanes += of_vector(i);
  T sum = reduce_sum<T>(lanes);
  for (; i < columns; ++i) sum += of_element(i);
  return sum;
}

}  // namespace heed::detail::HEED_ISA
