#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include <cstdint>

namespace heed::detail {

/// Query, key and value of `attend` (rank 4) or `attend_varlen` (rank 3).
void check_tensors(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, int64_t rank);

/// What is given by head: ALiBi's slopes and sinks.
void check_head_tensors(const char* function, const at::Tensor& query,
                        const AttendOptions& options);

/// Window, dropout, scale and softcap.
void check_score_options(const char* function, const AttendOptions& options);

/// Scale and softcap in the type that `dtype` is computed in.
void check_precision(const char* function, at::ScalarType dtype, const AttendOptions& options);

/// Every argument of `attend`.
void check_attend(const char* function, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, const AttendOptions& options);

}  // namespace heed::detail
