#include "kernels/rows.h"

#include "kernels/simd.h"

namespace heed::detail::HEED_ISA {

namespace {

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(Half x) { return to_float(x); }
inline float widen(BFloat16 x) { return to_float(x); }

inline void narrow(float x, float* to) { *to = x; }
inline void narrow(double x, double* to) { *to = x; }
inline void narrow(float x, Half* to) { *to = to_half(x); }
inline void narrow(float x, BFloat16* to) { *to = to_bfloat16(x); }

template <typename T, typename Element>
void pack_as(const Rows& from, T factor, T* to) {
  for (int64_t row = 0; row < from.count; ++row, to += from.columns) {
    const auto* source = static_cast<const Element*>(from.data) + row * from.row_stride;
    int64_t column = 0;
    if (from.column_stride == 1) {
      for (; column + kLanes<T> <= from.columns; column += kLanes<T>) {
        store(to + column, load(source + column) * factor);
      }
    }
    for (; column < from.columns; ++column) {
      to[column] = widen(source[column * from.column_stride]) * factor;
    }
  }
}

template <typename T, typename Element>
void unpack_as(const T* from, T factor, const T* factors, const Rows& to) {
  for (int64_t row = 0; row < to.count; ++row, from += to.columns) {
    auto* target = static_cast<Element*>(to.data) + row * to.row_stride;
    const T f = factors == nullptr ? factor : factor * factors[row];
    int64_t column = 0;
    if (to.column_stride == 1) {
      for (; column + kLanes<T> <= to.columns; column += kLanes<T>) {
        store(target + column, load(from + column) * f);
      }
    }
    for (; column < to.columns; ++column) {
      narrow(from[column] * f, target + column * to.column_stride);
    }
  }
}

void pack_float(const Rows& from, float factor, float* to) {
  if (from.type == ElementType::float32) return pack_as<float, float>(from, factor, to);
  if (from.type == ElementType::float16) return pack_as<float, Half>(from, factor, to);
  pack_as<float, BFloat16>(from, factor, to);
}

void unpack_float(const float* from, float factor, const float* factors, const Rows& to) {
  if (to.type == ElementType::float32) return unpack_as<float, float>(from, factor, factors, to);
  if (to.type == ElementType::float16) return unpack_as<float, Half>(from, factor, factors, to);
  unpack_as<float, BFloat16>(from, factor, factors, to);
}

}  // namespace

const RowKernels row_kernels = {{pack_float, unpack_float},
                                {pack_as<double, double>, unpack_as<double, double>}};

}  // namespace heed::detail::HEED_ISA
