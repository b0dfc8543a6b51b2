#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include <cstdint>

namespace heed::detail {

/// Query, key and value of `attend` (rank 4) or `attend_varlen` (rank 3).
void check_tensors(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, int64_t rank);

/// What the scores [B, H, L, S] of a call are made of: its tensors, as errors show them, and sizes.
struct ScoreSizes {
  const at::Tensor& query;
  const at::Tensor& key;
  int64_t batch, heads, query_length, key_length;
};

void check_mask_dtype(const char* function, const char* name, const at::Tensor& mask,
                      bool takes_bias);

/// A mask, under the name that the caller knows it by.
void check_mask(const char* function, const char* name, const at::Tensor& mask,
                const ScoreSizes& sizes, bool takes_bias = true);

void check_bias(const char* function, const at::Tensor& bias, const ScoreSizes& sizes);

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
