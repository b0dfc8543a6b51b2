// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend_options.h>
#include <heed/attention_inputs.h>
#include <heed/head_sizes.h>
#include <heed/kv_cache.h>
#include <heed/module.h>
#include <heed/paged_kv_cache.h>
#include <heed/projected_memory.h>
#include <heed/qk_norm.h>
#include <heed/rotary_embedding.h>
#include <heed/shared_sequence.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <ostream>
#include <tuple>

namespace heed {

namespace detail {
struct HeadProjections;
}

/// The options that `MultiHeadAttention` and `GroupQueryAttention` have in common.
///
/// @code
/// heed::GroupQueryAttentionOptions options(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
/// options.causal(true).window(256).rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/16));
/// heed::GroupQueryAttention attention(options.qk_norm(heed::QkNormOptions()));
/// @endcode
template <typename Derived>
struct MultiHeadAttentionOptionsBase {
 private:
  friend Derived;
  MultiHeadAttentionOptionsBase(int64_t emb_dim, double dropout)
      : emb_dim_(emb_dim), dropout_(dropout) {}

 public:
  /// E, the size of query's and the output's last dimension.
  HEED_DERIVED_NUMBER_ARG(int64_t, emb_dim);
  /// Probability in [0, 1) of dropping an attention weight, in training mode. The default is 0.1 in
  /// MultiHeadAttention, as in the documents that heed mirrors, and 0 in GroupQueryAttention.
  HEED_DERIVED_NUMBER_ARG(double, dropout);
  /// Size of key's last dimension; E by default.
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, key_emb_dim) = std::nullopt;
  /// Size of value's last dimension; E by default.
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, value_emb_dim) = std::nullopt;
  /// D; the default is E / H, and then E must be a multiple of H.
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, head_dim) = std::nullopt;
  /// Dv; D by default.
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, value_head_dim) = std::nullopt;
  /// Whether fc_q, fc_k and fc_v add a bias.
  HEED_ARG(bool, input_bias) = true;
  /// Whether fc_k has the bias of `input_bias`, which softmax cancels unless queries and keys are
  /// changed further.
  HEED_ARG(bool, key_bias) = true;
  /// Whether the output projection adds a bias.
  HEED_ARG(bool, output_bias) = true;
  /// Factor on the scores, not 0; 1 / sqrt(D) by default.
  HEED_DERIVED_NUMBER_ARG(std::optional<double>, scale) = std::nullopt;
  /// As in AttendOptions; they apply to every call. `top_left` and `right_window` cannot be used
  /// with a cache.
  /// @{
  HEED_ARG(bool, causal) = false;
  HEED_ARG(bool, top_left) = false;
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, window) = std::nullopt;
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, left_window) = std::nullopt;
  HEED_DERIVED_NUMBER_ARG(std::optional<int64_t>, right_window) = std::nullopt;
  /// @}
  /// Rotary embedding of queries and keys; its head_dim must be D. None by default.
  HEED_ARG(std::optional<RotaryEmbeddingOptions>, rotary) = std::nullopt;
  /// Normalization of every head of query and key. None by default.
  HEED_ARG(std::optional<QkNormOptions>, qk_norm) = std::nullopt;
  /// As in AttendOptions; applies to every call.
  HEED_DERIVED_NUMBER_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Whether scores decrease with the distance between query and key, by `alibi_slopes(H)`.
  HEED_ARG(bool, alibi) = false;
  /// Whether each head learns an attention sink; see AttendOptions::sinks.
  HEED_ARG(bool, sinks) = false;
};

/// The base of `MultiHeadAttention` and `GroupQueryAttention`. Only the names of some options and
/// of the output projection differ.
template <typename Derived, typename Options>
class HEED_API MultiHeadAttentionImplBase : public Cloneable<Derived> {
 public:
  /// Registers the projections. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name, the required options, and the options that differ from their defaults.
  void pretty_print(std::ostream& stream) const override;

  /// Self-attention: x [B, L, E]; inputs: a mask, or an AttentionInputs; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const AttentionInputs& inputs = {});

  /// Cross-attention: query [B, L, E], key [B, S, key_emb_dim],
  /// value [B, S, value_emb_dim]; mask and bias as in AttendOptions; returns [B, L, E].
  /// Throws as for self-attention.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask = {},
                     const std::optional<at::Tensor>& bias = {});

  /// Projects key [B, S, key_emb_dim] and value [B, S, value_emb_dim] once, for many queries over
  /// one memory: `forward(query, project_memory(key, value))` equals `forward(query, key, value)`,
  /// and projects only the query. Gradients pass through.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  ProjectedMemory project_memory(const at::Tensor& key, const at::Tensor& value) const;

  /// Cross-attention of query [B, L, E] to a memory that `project_memory` projected; mask and bias
  /// as in AttendOptions; returns [B, L, E]. Throws as for self-attention.
  at::Tensor forward(const at::Tensor& query, const ProjectedMemory& memory,
                     const std::optional<at::Tensor>& mask = {},
                     const std::optional<at::Tensor>& bias = {});

  /// Causal self-attention for token-by-token decoding: appends the tokens of x [B, L, E] to
  /// `cache`, and lets each of them attend to all cached tokens up to itself. Returns [B, L, E].
  /// Passing a whole prompt at once, in chunks or token by token gives the same numbers. With
  /// counts [B], only the first counts[b] tokens of sequence b are used; the outputs of the others
  /// have no meaning. The inputs may have `rotary_angles`, those of x, and `relative_bias`.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append. Also
  /// when there are other inputs, and with the options top_left and right_window.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {},
                            const AttentionInputs& inputs = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache.
  /// Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer = 0,
                            const AttentionInputs& inputs = {}) const;

  /// Cross-attention of the tokens of a step, x [1, T, E], to a memory of M rows that
  /// `project_memory` projected: each sequence attends to one of them, see PagedStep::memory_rows.
  /// The mask is [1, S], [M or 1, 1, S] or [M or 1, H or 1, 1, S]. Returns [1, T, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid, when the memory has not the
  /// rows of the step, and with the options causal, windows, alibi and rotary.
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, const ProjectedMemory& memory,
                            const std::optional<at::Tensor>& mask = {}) const;

  /// Returns an empty cache for `batch` sequences of up to `capacity` tokens. It has the dtype of
  /// the keys: the parameters' dtype or, under autocast, autocast's. If the module has a window of
  /// at most `capacity` keys, keys that no later query can see are evicted, and sequences can grow
  /// without end.
  /// Throws c10::ValueError when a size is below 1.
  KVCache make_cache(int64_t batch, int64_t capacity, const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages, for sequences that come and go.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(const at::Tensor& x,
                                                          const AttentionInputs& inputs = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, S]}. Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const std::optional<at::Tensor>& mask = {}, const std::optional<at::Tensor>& bias = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, S]}. Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& query, const ProjectedMemory& memory,
      const std::optional<at::Tensor>& mask = {}, const std::optional<at::Tensor>& bias = {}) const;

  using Cloneable<Derived>::to;
  /// As in torch::nn::Module; ALiBi's slopes stay float32.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  /// As in torch::nn::Module; ALiBi's slopes stay float32.
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  /// The options given at construction.
  Options options;
  /// The heads of this process: those of the options, until `parallelize` splits them.
  HeadSizes head_sizes;
  torch::nn::Linear fc_q{nullptr};  ///< (E, H * D)
  torch::nn::Linear fc_k{nullptr};  ///< (key_emb_dim, G * D)
  torch::nn::Linear fc_v{nullptr};  ///< (value_emb_dim, G * Dv)
  RotaryEmbedding rotary{nullptr};  ///< empty unless options.rotary()
  Norm q_norm{nullptr};             ///< empty unless options.qk_norm()
  Norm k_norm{nullptr};             ///< empty unless options.qk_norm()
  at::Tensor sinks;                 ///< [H], initially 0; undefined unless options.sinks()
  /// A buffer [H], float32; undefined unless options.alibi(). Weight files leave it out.
  at::Tensor alibi_slopes;
  /// Set while several processes share the sequence; see heed/distributed/context_parallel.h.
  std::shared_ptr<const SharedSequence> shared_sequence;

 protected:
  HEED_DEFAULT_ARGS(1, AttentionInputs);

 private:
  friend Derived;
  /// Registers no projections; `reset` does, and the derived class calls it.
  explicit MultiHeadAttentionImplBase(const Options& given) : options(given) {}

  HEED_LOCAL detail::HeadProjections projections() const;
  HEED_LOCAL AttendOptions attend_options(const AttentionInputs& inputs) const;
};

}  // namespace heed
