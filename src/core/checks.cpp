// SPDX-License-Identifier: BSD-3-Clause
#include "core/checks.h"

#include <cmath>

#include "core/dtypes.h"

namespace heed::detail {

void check_rank(const char* function, const char* name, const at::Tensor& tensor, int64_t rank) {
  HEED_CHECK(tensor.dim() == rank, "{}: {} rank ({}) must equal {}; {} {}", function, name,
             tensor.dim(), rank, name, shape(tensor));
}

void check_floating(const char* function, const char* name, const at::Tensor& tensor) {
  HEED_CHECK(is_attention_dtype(tensor.scalar_type()), "{}: {} dtype ({}) must be {}", function,
             name, c10::toString(tensor.scalar_type()), attention_dtypes());
}

void check_integer(const char* function, const char* name, const at::Tensor& tensor) {
  HEED_CHECK(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false),
             "{}: {} dtype ({}) must be an integer", function, name,
             c10::toString(tensor.scalar_type()));
}

void check_same_device(const char* function, const char* name, const at::Tensor& tensor,
                       const char* other_name, const at::Tensor& other) {
  HEED_CHECK(tensor.device() == other.device(), "{}: {} device ({}) must equal {} device ({})",
             function, name, tensor.device().str(), other_name, other.device().str());
}

void check_same_dtype(const char* function, const char* name, const at::Tensor& tensor,
                      const char* other_name, const at::Tensor& other) {
  HEED_CHECK(tensor.scalar_type() == other.scalar_type(),
             "{}: {} dtype ({}) must equal {} dtype ({})", function, name,
             c10::toString(tensor.scalar_type()), other_name, c10::toString(other.scalar_type()));
}

std::string shape(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

void check_positive(const char* function, const char* name, int64_t value) {
  HEED_CHECK(value >= 1, "{}: {} ({}) must be at least 1", function, name, value);
}

void check_not_negative(const char* function, const char* name, int64_t value) {
  HEED_CHECK(value >= 0, "{}: {} ({}) must be at least 0", function, name, value);
}

void check_probability(const char* function, const char* name, double value) {
  HEED_CHECK(value >= 0.0 && value < 1.0, "{}: {} ({}) must be in [0, 1)", function, name, value);
}

void check_eps(const char* function, double eps) {
  HEED_CHECK(std::isfinite(eps) && eps >= 0.0, "{}: eps ({}) must be finite and at least 0",
             function, eps);
}

void check_divisible(const char* function, const char* name, int64_t value,
                     const char* divisor_name, int64_t divisor) {
  check_positive(function, name, value);
  check_positive(function, divisor_name, divisor);
  HEED_CHECK(value % divisor == 0, "{}: {} ({}) must be a multiple of {} ({})", function, name,
             value, divisor_name, divisor);
}

void check_defined(const char* function, const char* name, const at::Tensor& tensor) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", function, name);
  HEED_CHECK(tensor.layout() == at::kStrided, "{}: {} layout ({}) must be Strided", function, name,
             c10::str(tensor.layout()));
  HEED_CHECK(!tensor.is_nested(), "{}: {} must not be nested", function, name);
}

void check_same_dim(const char* function, const char* name, const at::Tensor& tensor,
                    const char* other_name, const at::Tensor& other, int64_t dim) {
  HEED_CHECK(tensor.size(dim) == other.size(dim),
             "{}: {} dim {} ({}) must equal {} dim {} ({}); {} {}, {} {}", function, name, dim,
             tensor.size(dim), other_name, dim, other.size(dim), other_name, shape(other), name,
             shape(tensor));
}

}  // namespace heed::detail
