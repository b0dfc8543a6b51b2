#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend.h>

#include <cstdint>
#include <string>

#include "core/error.h"

namespace heed::detail {

/// "[2, 3, 4]".
std::string shape(const at::Tensor& tensor);

void check_positive(const char* function, const char* name, int64_t value);
void check_probability(const char* function, const char* name, double value);
void check_divisible(const char* function, const char* name, int64_t value,
                     const char* divisor_name, int64_t divisor);

/// Defined, strided and not nested.
void check_defined(const char* function, const char* name, const at::Tensor& tensor);

void check_same_dim(const char* function, const char* name, const at::Tensor& tensor,
                    const char* other_name, const at::Tensor& other, int64_t dim);

/// A module's input: [B, L, weight dim 1] in the dtype and on the device of the weight it meets.
void check_input(const char* function, const char* name, const at::Tensor& input,
                 const at::Tensor& weight, const char* dim_name = "emb_dim");

/// An input's device and dtype are those of the module's weight, but for autocast.
void check_module_dtype(const char* function, const char* name, const at::Tensor& input,
                        const at::Tensor& weight);

/// Tokens [B, L], int64 below the number of `embeddings`.
void check_tokens(const char* function, const at::Tensor& tokens, const at::Tensor& embeddings);

/// Positions of tokens: integers [L] or [B, L].
void check_positions(const char* function, const at::Tensor& positions);

/// Query, key and value of `attend` (rank 4) or `attend_varlen` (rank 3).
void check_tensors(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, int64_t rank);

/// A module's query, key and value inputs: equal batches, and equal lengths of key and value.
void check_sources(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value);

/// What is given by head: ALiBi's slopes and sinks.
void check_head_tensors(const char* function, const at::Tensor& query,
                        const AttendOptions& options);

/// Window, dropout, scale and softcap.
void check_score_options(const char* function, const AttendOptions& options);

/// Every argument of `attend`.
void check_attend(const char* function, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, const AttendOptions& options);

}  // namespace heed::detail
