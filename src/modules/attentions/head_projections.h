#pragma once

#include <heed/attend.h>
#include <heed/norm.h>
#include <heed/projected_memory.h>
#include <heed/rotary_embedding.h>
#include <heed/shared_sequence.h>

#include <optional>
#include <tuple>
#include <utility>

#include "modules/attentions/calls.h"
#include "modules/caches/caches.h"
#include "modules/heads.h"
#include "modules/layers/linear.h"

namespace heed::detail {

/// What the projections are applied to: query [B, L, E], key and value [B, S, ...].
struct Sources {
  at::Tensor query, key, value;
};

/// The transforms of the heads of query and key before attention. Each of them may be empty.
struct HeadTransforms {
  const RotaryEmbedding& rotary;
  const Norm &query_norm, &key_norm;
  bool norm_after_rotary;

  /// Normalizes heads, and rotates them if there is a rotary embedding.
  /// @{
  at::Tensor of_query(const at::Tensor& heads, const RotaryAngles& angles) const;
  at::Tensor of_key(const at::Tensor& heads, const RotaryAngles& angles) const;
  /// @}

 private:
  at::Tensor apply(at::Tensor heads, const Norm& norm, const RotaryAngles& angles) const;
};

/// The code that MultiHeadAttention and GroupQueryAttention share: it projects, attends by heads,
/// and projects.
struct HeadProjections {
  const char* function;  // names errors
  const torch::nn::Linear& query;
  const torch::nn::Linear& key;
  const torch::nn::Linear& value;
  const torch::nn::Linear& output;
  int64_t num_heads;
  HeadTransforms transforms;             // of query and key
  const char* key_dim_name = "emb_dim";  // the options that fix key's and value's last dimension
  const char* value_dim_name = "emb_dim";
  const SharedSequence* sequence = nullptr;  // null: this process has the whole sequence

  at::Tensor forward(const at::Tensor& query_input, const at::Tensor& key_input,
                     const at::Tensor& value_input, const AttendOptions& options) const;
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(const at::Tensor& query_input,
                                                          const at::Tensor& key_input,
                                                          const at::Tensor& value_input,
                                                          const AttendOptions& options) const;
  at::Tensor forward(const at::Tensor& query_input, const ProjectedMemory& memory,
                     const AttendOptions& options) const;
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(const at::Tensor& query_input,
                                                          const ProjectedMemory& memory,
                                                          const AttendOptions& options) const;
  ProjectedMemory project_memory(const at::Tensor& key_input, const at::Tensor& value_input) const;
  at::Tensor forward_appended(const at::Tensor& x, AppendedTokens& tokens,
                              const AttendOptions& options) const;

 private:
  void check(const at::Tensor& query_input, const at::Tensor& key_input,
             const at::Tensor& value_input) const;
  void check_memory(const at::Tensor& query_input, const ProjectedMemory& memory) const;
  /// `key` has `key_length` keys.
  void check_scores(const at::Tensor& query_input, const at::Tensor& key, int64_t key_length,
                    const AttendOptions& options) const;
  int64_t head_dim() const;
  int64_t groups() const;
  /// Throws unless this process has the whole sequence, which `use` needs.
  void check_whole_sequence(const char* use) const;
  /// The angles of queries and keys of which this process holds so many.
  std::pair<RotaryAngles, RotaryAngles> angles(int64_t length, int64_t key_length,
                                               const at::TensorOptions& like) const;
  /// Of all processes together; num_heads are this one's.
  int64_t whole_heads() const;
  /// The inputs as the projections take them; see ShardedLinearImpl::enter.
  /// @{
  Sources enter(const at::Tensor& query_input, const at::Tensor& key_input,
                const at::Tensor& value_input) const;
  Sources enter_memory(const at::Tensor& key_input, const at::Tensor& value_input) const;
  /// @}
  /// Checks and projects the inputs, and transforms query and key.
  /// @{
  Heads heads(const at::Tensor& query_input, const at::Tensor& key_input,
              const at::Tensor& value_input, const AttendOptions& options) const;
  Heads heads(const at::Tensor& query_input, const ProjectedMemory& memory,
              const AttendOptions& options) const;
  /// @}
  std::pair<at::Tensor, at::Tensor> project_key_and_value(const Sources& sources) const;
  Heads project_heads(const Sources& sources) const;
  /// attend(options), with the options and the random numbers of this process's heads.
  template <typename Attend>
  auto with_own_heads(const AttendOptions& options, const Attend& attend) const;
  AttendOptions of_own_heads(AttendOptions options) const;
  at::Tensor attended(const Heads& heads, const AttendOptions& options) const;
  std::tuple<at::Tensor, at::Tensor> attended_with_weights(const Heads& heads,
                                                           const AttendOptions& options) const;
  at::Tensor forward_nested(const at::Tensor& query_input, const at::Tensor& key_input,
                            const at::Tensor& value_input, const AttendOptions& options) const;
};

}  // namespace heed::detail
