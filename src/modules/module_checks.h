#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

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

/// A module's query, key and value inputs: equal batches, and equal lengths of key and value.
void check_sources(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value);

}  // namespace heed::detail
