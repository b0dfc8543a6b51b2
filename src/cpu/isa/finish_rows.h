// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"
#include "cpu/isa/output_functions.h"
#include "cpu/isa/simd.h"

/// Outputs of packed weights, and offsets of int4. Only for the sources of this folder.

namespace heed::detail::HEED_ISA {

inline Vec<float> to_float(Vec<int32_t> numbers) {
  return __builtin_convertvector(numbers, Vec<float>);
}

/// The offsets of a vector of outputs; see PackedRows.
inline Vec<float> int4_offset(const BFloat16* offsets, int64_t column, Vec<float> scale) {
  return offsets != nullptr ? load(offsets + column) : scale * float{kSymmetricOffset};
}

/// Writes rows to[r] = Function of the floats of sums_of(r) * scales + bias; scales and bias may be
/// null.
template <typename Function, typename Element, typename SumsOf>
inline void finish_rows_as(const Rows& to, const float* scales, const Element* bias,
                           const SumsOf& sums_of) {
  constexpr int64_t kWidth = kLanes<float>;
  constexpr bool kShort = kSame<Element, BFloat16>;
  for (int64_t row = 0; row < to.count; ++row) {
    const auto sums = sums_of(row);
    auto* output = static_cast<Element*>(to.data) + row * to.row_stride;
    int64_t column = 0;
    for (; column + kWidth <= to.columns; column += kWidth) {
      auto result = sums.vector(column);
      if (scales != nullptr) result *= load(scales + column);
      if (bias != nullptr) result += load(bias + column);
      result = Function::template of<kShort>(result);
      if constexpr (kShort) {
        store_for_products(output + column, result);
      } else {
        store(output + column, result);
      }
    }
    for (; column < to.columns; ++column) {
      float result = sums.number(column);
      if (scales != nullptr) result *= scales[column];
      if (bias != nullptr) result += widen(bias[column]);
      const auto lanes = Function::template of<kShort>(broadcast(result));
      narrow(float{lanes[0]}, output + column);
    }
  }
}

template <typename SumsOf>
inline void finish_rows(const Rows& to, const float* scales, const void* biases,
                        OutputFunction function, const SumsOf& sums_of) {
  with_element_of<float>(to.type, [&](auto element) {
    using Element = decltype(element);
    if constexpr (!kSame<Element, double>) {
      with_function(function, [&](auto applied) {
        finish_rows_as<decltype(applied)>(to, scales, static_cast<const Element*>(biases), sums_of);
      });
    }
  });
}

}  // namespace heed::detail::HEED_ISA
