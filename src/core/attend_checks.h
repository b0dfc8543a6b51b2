#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/export.h>

#include <cstdint>

namespace heed::detail {

/// Checks query, key and value of `attend` (rank 4) or `attend_varlen` (rank 3).
HEED_API void check_tensors(const char* function, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, int64_t rank);

/// The sizes of the scores [B, H, L, S] of a call, and its tensors as errors show them.
struct ScoreSizes {
  const at::Tensor& query;
  const at::Tensor& key;
  int64_t batch, heads, query_length, key_length;
};

void check_mask_dtype(const char* function, const char* name, const at::Tensor& mask,
                      bool takes_bias);

/// Checks a mask, and names it in errors as the caller does.
void check_mask(const char* function, const char* name, const at::Tensor& mask,
                const ScoreSizes& sizes, bool takes_bias = true);

void check_bias(const char* function, const at::Tensor& bias, const ScoreSizes& sizes);

/// Checks the document of each query and key.
void check_documents(const char* function, const AttendOptions& options, const ScoreSizes& sizes);

/// Checks the options that have one value per head: ALiBi's slopes and sinks.
void check_head_tensors(const char* function, const at::Tensor& query,
                        const AttendOptions& options);

/// Checks window, dropout, scale and softcap.
void check_score_options(const char* function, const AttendOptions& options);

/// Checks that scale and softcap are representable in the type in which `dtype` is computed.
void check_precision(const char* function, at::ScalarType dtype, const AttendOptions& options);

/// Checks every argument of `attend`.
HEED_API void check_attend(const char* function, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const AttendOptions& options);

}  // namespace heed::detail
