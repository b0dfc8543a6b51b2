#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "cpu/capability.h"

namespace heed::detail {

/// How many rows, or tokens, of so many elements are worth a thread.
constexpr int64_t units_per_task(int64_t elements) {
  constexpr int64_t kElements = 1 << 14;
  return elements > 0 && elements < kElements ? kElements / elements : 1;
}

/// Returns run(kernels), with the kernels that compute in the type for `dtype`.
template <typename Run>
auto with_layer_kernels(at::ScalarType dtype, const Run& run) {
  const auto& kernels = instruction_set().layers;
  return dtype == at::kDouble ? run(kernels.of_double) : run(kernels.of_float);
}

}  // namespace heed::detail
