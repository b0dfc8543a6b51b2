#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <heed/attend.h>

#include <cstdint>
#include <string>

/// Throws c10::ValueError with an fmt message, formatted only on failure.
#define HEED_CHECK(condition, ...) TORCH_CHECK_VALUE(condition, fmt::format(__VA_ARGS__))

namespace heed::detail {

/// "[2, 3, 4]".
std::string shape(const at::Tensor& tensor);

void check_positive(const char* function, const char* name, int64_t value);
void check_probability(const char* function, const char* name, double value);
void check_divisible(const char* function, const char* name, int64_t value,
                     const char* divisor_name, int64_t divisor);

void check_same_dim(const char* function, const char* name, const at::Tensor& tensor,
                    const char* other_name, const at::Tensor& other, int64_t dim);

/// A module's input: [B, L, weight dim 1] in the dtype and on the device of the weight it meets.
void check_input(const char* function, const char* name, const at::Tensor& input,
                 const at::Tensor& weight);

/// Every argument of `attend`.
void check_attend(const char* function, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, const AttendOptions& options);

}  // namespace heed::detail
