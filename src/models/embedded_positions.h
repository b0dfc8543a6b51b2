// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <heed/transformer.h>

#include <memory>
#include <optional>

#include "models/block_attention.h"

namespace heed::detail {

/// The sequence that processes share, of which a model's tokens are this process's share; null if
/// they do not share one.
inline std::shared_ptr<const SharedSequence> shared_sequence(const Encoder& stack) {
  for (const auto& block : *stack->blocks) {
    auto sequence = shared_sequence_of(*block->as<TransformerBlockImpl>());
    if (sequence) return sequence;
  }
  return nullptr;
}

/// The positions of tokens [B, L], for a model's position embedding: those of the inputs, or those
/// of this process's share of the sequence; nullopt: 0 to L - 1.
inline std::optional<at::Tensor> embedded_positions(const at::Tensor& tokens,
                                                    const TransformerInputs& inputs,
                                                    const Encoder& stack) {
  const auto sequence = shared_sequence(stack);
  if (inputs.positions() || !sequence) return inputs.positions();
  return sequence->shard(at::arange(tokens.size(1) * sequence->processes(), tokens.options()), 0);
}

}  // namespace heed::detail
