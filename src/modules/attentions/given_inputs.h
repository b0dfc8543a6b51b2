// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend_options.h>
#include <heed/attention_inputs.h>
#include <heed/rotary_embedding.h>
#include <heed/shared_sequence.h>

#include <optional>

namespace heed::detail {

/// Calls visit(name, tensor) for each tensor that an AttentionInputs or a TransformerInputs gives
/// the self-attention.
template <typename Inputs, typename Visit>
void visit_tensors(Inputs& inputs, const Visit& visit) {
  const auto each = [&](const char* name, auto& tensor) {
    if (tensor) visit(name, *tensor);
  };
  each("mask", inputs.mask());
  each("bias", inputs.bias());
  each("documents", inputs.documents());
  each("positions", inputs.positions());
  each("query_lengths", inputs.query_lengths());
  each("key_lengths", inputs.key_lengths());
  each("global_tokens", inputs.global_tokens());
  each("relative_bias", inputs.relative_bias());
  each("relative_positions", inputs.relative_positions());
  if (auto& angles = inputs.rotary_angles()) {
    visit("rotary_angles", angles->cos);
    visit("rotary_angles", angles->sin);
  }
}

/// The options of a call that the inputs give.
AttendOptions given_options(const AttentionInputs& inputs);

/// Checks that the inputs have nothing that a cache does not take.
void check_cached_inputs(const char* function, const AttentionInputs& inputs);

/// The angles that the inputs give the tokens x [B, L, E] of a module with this rotary embedding,
/// which may be empty; nullopt if the module has none, or if its positions are 0 to L - 1. Where
/// processes share `sequence`, x is this process's share; null: x is the whole sequence.
std::optional<RotaryAngles> given_angles(const char* function, const AttentionInputs& inputs,
                                         const RotaryEmbedding& rotary, const at::Tensor& x,
                                         const SharedSequence* sequence);

}  // namespace heed::detail
