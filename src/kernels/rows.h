#pragma once

#include <stdint.h>

#include "kernels/cpu_capability.h"

namespace heed::detail {

/// What a kernel reads from memory or writes to it.
enum class ElementType { float64, float32, bfloat16, float16 };

/// Rows of `columns` elements: row r begins at `data` + r * row_stride, and its elements are
/// `column_stride` apart.
struct Rows {
  void* data;
  ElementType type;
  int64_t count, columns;
  int64_t row_stride, column_stride;
};

/// Copies between a tensor's rows and contiguous ones of the type that is computed in; `T` is
/// double where the tensor's is, else float.
template <typename T>
struct RowKernelsOf {
  void (*pack)(const Rows& from, T factor, T* to);  ///< to = factor * from
  /// to = factor * factors[row] * from; factors may be null.
  void (*unpack)(const T* from, T factor, const T* factors, const Rows& to);
};

struct RowKernels {
  RowKernelsOf<float> of_float;
  RowKernelsOf<double> of_double;
};

HEED_DECLARE_KERNELS(RowKernels, row_kernels)

}  // namespace heed::detail
