// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/layers.h"
#include "cpu/isa/row_loops.h"

/// LayerNorm and RMSNorm of rows. Only for the sources of this folder.
///
///   rms_norm, for each row:   y = x * inverse * w,   w = weight + offset
///     inverse  = 1 / sqrt(mean(x^2) + eps)
///     backward: dx = inverse * (dy * w - x * inverse^2 * mean(x * dy * w))
///               dweight += dy * x * inverse
///   layer_norm, for each row:   y = (x - m) * inverse * weight + bias,   m = mean(x)
///     inverse  = 1 / sqrt(mean((x - m)^2) + eps)
///
/// A row is read again from the L1 cache for each sum. Memory bounds them. See docs/kernels.md,
/// "Layers".

namespace heed::detail::HEED_ISA {

/// 1 / sqrt(mean((row - center)^2) + eps).
template <typename T, typename Element>
inline T inverse_deviation(const Element* row, int64_t columns, T center, T eps) {
  const T sum = sum_over<T>(
      columns,
      [&](int64_t i) {
        const auto x = load(row + i) - center;
        return x * x;
      },
      [&](int64_t i) {
        const T x = widen(row[i]) - center;
        return x * x;
      });
  const T mean = sum / static_cast<T>(columns) + eps;
  if constexpr (sizeof(T) == 8) return 1 / __builtin_sqrt(mean);
  return 1 / __builtin_sqrtf(mean);
}

template <typename T, typename Element, typename Weight>
void rms_norm_rows(const Rows& from, const NormScale<T>& scale, const Rows& to) {
  const auto* weight = static_cast<const Weight*>(scale.weight);
  for (int64_t r = 0; r < from.count; ++r) {
    const auto* x = row_of<Element>(from, r);
    auto* y = row_of<Element>(to, r);
    const T inverse = inverse_deviation<T>(x, from.columns, T{0}, scale.eps);
    int64_t i = 0;
    for (; i + kLanes<T> <= from.columns; i += kLanes<T>) {
      store(y + i, load(x + i) * inverse * (load(weight + i) + scale.offset));
    }
    for (; i < from.columns; ++i) {
      narrow(widen(x[i]) * inverse * (widen(weight[i]) + scale.offset), y + i);
    }
  }
}

template <typename T, typename Element, typename Weight>
void layer_norm_rows(const Rows& from, const NormScale<T>& scale, const Weight* bias,
                     const Rows& to) {
  const auto* weight = static_cast<const Weight*>(scale.weight);
  const auto columns = from.columns;
  for (int64_t r = 0; r < from.count; ++r) {
    const auto* x = row_of<Element>(from, r);
    auto* y = row_of<Element>(to, r);
    const T sum = sum_over<T>(
        columns, [&](int64_t i) { return load(x + i); }, [&](int64_t i) { return widen(x[i]); });
    const T center = sum / static_cast<T>(columns);
    const T inverse = inverse_deviation<T>(x, columns, center, scale.eps);
    int64_t i = 0;
    for (; i + kLanes<T> <= columns; i += kLanes<T>) {
      auto result = (load(x + i) - center) * inverse * (load(weight + i) + scale.offset);
      if (bias != nullptr) result += load(bias + i);
      store(y + i, result);
    }
    for (; i < columns; ++i) {
      T result = (widen(x[i]) - center) * inverse * (widen(weight[i]) + scale.offset);
      if (bias != nullptr) result += widen(bias[i]);
      narrow(result, y + i);
    }
  }
}

template <typename T, typename Element, typename Weight>
void rms_norm_backward_rows(const Rows& from, const Rows& output_gradient,
                            const NormScale<T>& scale, const Rows& to, T* weight_gradient) {
  const auto* weight = static_cast<const Weight*>(scale.weight);
  const T offset = scale.offset;
  for (int64_t r = 0; r < from.count; ++r) {
    const auto* x = row_of<Element>(from, r);
    const auto* gradient = row_of<Element>(output_gradient, r);
    auto* y = row_of<Element>(to, r);
    const T inverse = inverse_deviation<T>(x, from.columns, T{0}, scale.eps);
    const T dot = sum_over<T>(
        from.columns,
        [&](int64_t i) { return load(x + i) * load(gradient + i) * (load(weight + i) + offset); },
        [&](int64_t i) {
          return T{widen(x[i])} * widen(gradient[i]) * (widen(weight[i]) + offset);
        });
    const T along = dot * inverse * inverse / static_cast<T>(from.columns);
    int64_t i = 0;
    for (; i + kLanes<T> <= from.columns; i += kLanes<T>) {
      const auto g = load(gradient + i), row = load(x + i);
      store(y + i, inverse * (g * (load(weight + i) + offset) - row * along));
      store(weight_gradient + i, load(weight_gradient + i) + g * row * inverse);
    }
    for (; i < from.columns; ++i) {
      const T g = widen(gradient[i]), row = widen(x[i]);
      narrow(inverse * (g * (widen(weight[i]) + offset) - row * along), y + i);
      weight_gradient[i] += g * row * inverse;
    }
  }
}

}  // namespace heed::detail::HEED_ISA
