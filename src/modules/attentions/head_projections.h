// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>
#include <heed/attention_inputs.h>
#include <heed/head_sizes.h>
#include <heed/norm.h>
#include <heed/projected_memory.h>
#include <heed/rotary_embedding.h>
#include <heed/shared_sequence.h>

#include <tuple>
#include <utility>

#include "modules/attentions/calls.h"
#include "modules/attentions/sources.h"
#include "modules/caches/caches.h"
#include "modules/caches/memory_rows.h"
#include "modules/heads.h"
#include "modules/layers/linear.h"

namespace heed::detail {

/// The norms and the rotary embedding that are applied to the heads of query and key before
/// attention. Each may be empty.
struct HeadTransforms {
  const RotaryEmbedding& rotary;
  const Norm &query_norm, &key_norm;
  bool norm_after_rotary;

  /// Applies the norm and the rotary embedding, if there are any, in the order of
  /// `norm_after_rotary`.
  /// @{
  at::Tensor of_query(const at::Tensor& heads, const RotaryAngles& angles) const;
  at::Tensor of_key(const at::Tensor& heads, const RotaryAngles& angles) const;
  /// @}

 private:
  at::Tensor apply(at::Tensor heads, const Norm& norm, const RotaryAngles& angles) const;
};

/// The code that MultiHeadAttention and GroupQueryAttention share: it projects the inputs to
/// heads, computes attention, and projects the merged heads.
struct HeadProjections {
  const char* function;  // the name with which errors begin
  const torch::nn::Linear& query;
  const torch::nn::Linear& key;
  const torch::nn::Linear& value;
  const torch::nn::Linear& output;
  const HeadSizes& sizes;                // of this process's heads
  HeadTransforms transforms;             // applied to query and key
  const char* key_dim_name = "emb_dim";  // options that set the last dim of key, value
  const char* value_dim_name = "emb_dim";
  const SharedSequence* sequence = nullptr;  // null: this process has the whole sequence

  /// The options have all of the call's `given` inputs but positions and rotary angles.
  /// @{
  at::Tensor forward(const Sources& inputs, const AttendOptions& options,
                     const AttentionInputs& given = {}) const;
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(const Sources& inputs,
                                                          const AttendOptions& options,
                                                          const AttentionInputs& given = {}) const;
  at::Tensor forward_appended(const at::Tensor& x, AppendedTokens& tokens,
                              const AttendOptions& options, const AttentionInputs& given) const;
  /// @}
  /// The two steps of a call with a projected memory: the heads, and attention to them.
  /// @{
  Heads heads(const at::Tensor& query_input, const ProjectedMemory& memory,
              const AttendOptions& options) const;
  at::Tensor attended(const Heads& heads, const AttendOptions& options) const;
  std::tuple<at::Tensor, at::Tensor> attended_with_weights(const Heads& heads,
                                                           const AttendOptions& options) const;
  /// @}
  ProjectedMemory project_memory(const at::Tensor& key_input, const at::Tensor& value_input) const;
  /// The two steps of a call for a step's tokens x [1, T, E], whose sequences attend to rows of a
  /// projected memory: checks, and attention.
  /// @{
  void check_step(const at::Tensor& x, const ProjectedMemory& memory,
                  const AttendOptions& options) const;
  at::Tensor attended_rows(const at::Tensor& x, const ProjectedMemory& memory,
                           const MemoryRows& rows, const AttendOptions& options) const;
  /// @}

 private:
  void check(const Sources& inputs) const;
  void check_memory(const at::Tensor& query_input, const ProjectedMemory& memory,
                    int64_t batch) const;
  /// Checks mask and bias against the shape of the scores. `key` is shown in errors; it may be
  /// only a part of the `key_length` keys.
  void check_scores(const at::Tensor& query_input, const at::Tensor& key, int64_t key_length,
                    const AttendOptions& options) const;
  /// Throws unless this process has the whole sequence, which `use` needs.
  void check_whole_sequence(const char* use) const;
  /// The angles of this process's `length` queries and `key_length` keys.
  std::pair<RotaryAngles, RotaryAngles> angles(int64_t length, int64_t key_length,
                                               const AttendOptions& options,
                                               const at::TensorOptions& like) const;
  /// The number of query heads in all processes together.
  int64_t whole_heads() const;
  /// Prepares inputs for the projections, which may be split among processes; see
  /// LayerSharing::enter.
  /// @{
  Sources enter(const Sources& inputs) const;
  Sources enter_memory(const Sources& inputs) const;
  /// @}
  /// Checks and projects the inputs, and transforms query and key.
  Heads heads(const Sources& inputs, const AttendOptions& options,
              const AttentionInputs& given) const;
  std::pair<at::Tensor, at::Tensor> project_key_and_value(const Sources& sources) const;
  Heads project_heads(const Sources& sources) const;
  /// Calls `attend` with the options for this process's heads, and with its own random numbers.
  template <typename Attend>
  auto with_own_heads(const AttendOptions& options, const Attend& attend) const;
  AttendOptions of_own_heads(AttendOptions options, const TensorShard& part) const;
  at::Tensor forward_nested(const Sources& inputs, const AttendOptions& options,
                            const AttentionInputs& given) const;
};

}  // namespace heed::detail
