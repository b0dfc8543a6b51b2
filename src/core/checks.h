// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <cstdint>
#include <string>

#include "core/error.h"

namespace heed::detail {

/// The sizes of a tensor for errors: "[2, 3, 4]".
HEED_API std::string shape(const at::Tensor& tensor);

HEED_API void check_positive(const char* function, const char* name, int64_t value);
void check_not_negative(const char* function, const char* name, int64_t value);
void check_probability(const char* function, const char* name, double value);
void check_eps(const char* function, double eps);
void check_divisible(const char* function, const char* name, int64_t value,
                     const char* divisor_name, int64_t divisor);

void check_rank(const char* function, const char* name, const at::Tensor& tensor, int64_t rank);

/// Checks that the dtype is one that attention takes.
void check_floating(const char* function, const char* name, const at::Tensor& tensor);

/// Checks that the dtype is one of integers, and not bool.
void check_integer(const char* function, const char* name, const at::Tensor& tensor);
void check_same_device(const char* function, const char* name, const at::Tensor& tensor,
                       const char* other_name, const at::Tensor& other);
void check_same_dtype(const char* function, const char* name, const at::Tensor& tensor,
                      const char* other_name, const at::Tensor& other);

/// Checks that the tensor is defined, strided and not nested.
void check_defined(const char* function, const char* name, const at::Tensor& tensor);

void check_same_dim(const char* function, const char* name, const at::Tensor& tensor,
                    const char* other_name, const at::Tensor& other, int64_t dim);

}  // namespace heed::detail
