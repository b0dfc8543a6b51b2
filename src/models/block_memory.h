// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/transformer.h>

#include <cstdint>

namespace heed::detail {

/// Throws if cross-attention cannot attend to this memory. Nested tensors are left to attention.
void check_given_memory(const at::Tensor& memory, const GroupQueryAttention& cross_attention);

/// Throws if the memory that the inputs give does not fit the block, or x. `in_step`: x [1, T, E]
/// are the tokens of sequences that each have a row of the memory.
void check_block_memory(const TransformerBlockImpl& block, const at::Tensor& x,
                        const TransformerInputs& inputs, bool in_step);

/// Throws if the inputs give something to a self-attention that the block has not.
void check_self_attention_inputs(const TransformerBlockImpl& block,
                                 const TransformerInputs& inputs);

}  // namespace heed::detail
