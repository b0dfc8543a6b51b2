// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/module.h>
#include <heed/multi_head_attention.h>
#include <torch/nn/modules/normalization.h>

namespace heed {

namespace detail {
struct Sources;
}

/// Options of `ResidualAttention`.
struct HEED_API ResidualAttentionOptions {
  /// Required options.
  /* implicit */ ResidualAttentionOptions(const MultiHeadAttentionOptions& attention)
      : attention_(attention) {}
  /// Options of the inner attention.
  TORCH_ARG(MultiHeadAttentionOptions, attention);
  /// Probability in [0, 1) of dropping an element of the attention's output, in training mode; 0.1
  /// as in the documents that heed mirrors.
  HEED_NUMBER_ARG(double, dropout) = 0.1;
  /// false: "post-norm", LayerNorm(x + attention(x));
  /// true: "pre-norm", x + attention(LayerNorm(x)).
  TORCH_ARG(bool, norm_first) = false;
  /// Added to the variance inside LayerNorm.
  HEED_NUMBER_ARG(double, eps) = 1e-6;
};

/// `MultiHeadAttention` with a residual connection, dropout and LayerNorm around it: the attention
/// sub-layer of a transformer. Post-norm: Vaswani et al. 2017 (arXiv:1706.03762), section 5.4;
/// pre-norm: Xiong et al. 2020 (arXiv:2002.04745).
///
/// @code
/// heed::MultiHeadAttentionOptions attention(/*emb_dim=*/64, /*head_nums=*/4);
/// heed::ResidualAttention layer(heed::ResidualAttentionOptions(attention).norm_first(true));
/// auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
/// @endcode
///
/// Modules: attention, a MultiHeadAttention; layer_norm, a LayerNorm(E).
class HEED_API ResidualAttentionImpl : public Cloneable<ResidualAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit ResidualAttentionImpl(const ResidualAttentionOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Self-attention: x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Cross-attention; shapes as in MultiHeadAttention. The residual connection adds query. With
  /// norm_first, query is normalized; key and value are normalized only if they are the same tensor
  /// as query.
  /// Throws as for self-attention.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask = {});

  /// Causal self-attention for token-by-token decoding; see MultiHeadAttention.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache.
  /// Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer = 0) const;

  /// Returns an empty cache for the inner attention; see MultiHeadAttention.
  KVCache make_cache(int64_t batch, int64_t capacity, const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages, for sequences that come and go.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, S]}. Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const std::optional<at::Tensor>& mask = {}) const;

  /// The options given at construction.
  ResidualAttentionOptions options;
  MultiHeadAttention attention{nullptr};     ///< without residual connection and norm
  torch::nn::LayerNorm layer_norm{nullptr};  ///< of E elements

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);

 private:
  HEED_LOCAL detail::Sources sources(const detail::Sources& inputs,
                                     const std::optional<at::Tensor>& mask = {}) const;
  HEED_LOCAL at::Tensor residual(const at::Tensor& query, const at::Tensor& attended) const;
};

}  // namespace heed

HEED_MODULE(ResidualAttention, std::optional<at::Tensor>);
