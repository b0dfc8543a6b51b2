// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"
#include "cpu/isa/simd.h"

/// Outputs of packed weights. Only for the sources of this folder.

namespace heed::detail::HEED_ISA {

inline Vec<float> to_float(Vec<int32_t> numbers) {
  return __builtin_convertvector(numbers, Vec<float>);
}

/// Writes rows to[r] = the floats of sums_of(r) * scales + bias; scales and bias may be null.
template <typename SumsOf>
inline void finish_rows(const Rows& to, const float* scales, const void* biases,
                        const SumsOf& sums_of) {
  with_element_of<float>(to.type, [&](auto element) {
    using Element = decltype(element);
    if constexpr (!kSame<Element, double>) {
      constexpr int64_t kWidth = kLanes<float>;
      const auto* bias = static_cast<const Element*>(biases);
      for (int64_t row = 0; row < to.count; ++row) {
        const auto sums = sums_of(row);
        auto* output = static_cast<Element*>(to.data) + row * to.row_stride;
        int64_t column = 0;
        for (; column + kWidth <= to.columns; column += kWidth) {
          auto result = sums.vector(column);
          if (scales != nullptr) result *= load(scales + column);
          if (bias != nullptr) result += load(bias + column);
          store(output + column, result);
        }
        for (; column < to.columns; ++column) {
          float result = sums.number(column);
          if (scales != nullptr) result *= scales[column];
          if (bias != nullptr) result += widen(bias[column]);
          narrow(result, output + column);
        }
      }
    }
  });
}

}  // namespace heed::detail::HEED_ISA
