#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "cpu/capability.h"

namespace heed::detail {

/// The number of rows or tokens, of `elements` elements each, that are worth a thread.
constexpr int64_t rows_per_task(int64_t elements) {
  constexpr int64_t kElements = 1 << 14;
  return elements > 0 && elements < kElements ? kElements / elements : 1;
}

/// Returns run(kernels) with the kernels for `dtype`: they compute in double for float64, and in
/// float for all others.
template <typename Run>
auto with_layer_kernels(at::ScalarType dtype, const Run& run) {
  const auto& kernels = instruction_set().layers;
  return dtype == at::kDouble ? run(kernels.of_double) : run(kernels.of_float);
}

}  // namespace heed::detail
