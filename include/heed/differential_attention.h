// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend.h>
#include <heed/head_sizes.h>
#include <heed/kv_cache.h>
#include <heed/module.h>
#include <heed/norm.h>
#include <heed/paged_kv_cache.h>
#include <heed/rotary_embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>

namespace heed {

/// Options of `DifferentialAttention`.
struct HEED_API DifferentialAttentionOptions {
  /// Required options.
  DifferentialAttentionOptions(int64_t emb_dim, int64_t head_num)
      : emb_dim_(emb_dim), head_num_(head_num) {}
  HEED_NO_BOOL(DifferentialAttentionOptions);
  /// E; divisible by 2 H.
  HEED_NUMBER_ARG(int64_t, emb_dim);
  /// H, the number of pairs of heads: half the number of heads of multi-head attention with the
  /// same head dim.
  HEED_NUMBER_ARG(int64_t, head_num);
  /// The number of the layer in its model, starting at 0. It sets the initial value of lambda,
  /// 0.8 - 0.6 exp(-0.3 layer).
  HEED_NUMBER_ARG(int64_t, layer) = 0;
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// Whether the projections add biases.
  TORCH_ARG(bool, bias) = false;
  /// As in AttendOptions; applies to every call.
  TORCH_ARG(bool, causal) = false;
  /// As in AttendOptions; applies to every call.
  HEED_NUMBER_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Rotary embedding of queries and keys; its head_dim must be D. None by default.
  TORCH_ARG(std::optional<RotaryEmbeddingOptions>, rotary) = std::nullopt;
};

/// Attention whose weights are the difference of two softmaxes, which cancels what both have in
/// common: (softmax(Q1 K1^T) - lambda softmax(Q2 K2^T)) V. Ye et al. 2024 (arXiv:2410.05258).
///
/// @code
/// heed::DifferentialAttentionOptions options(/*emb_dim=*/64, /*head_num=*/4);
/// heed::DifferentialAttention attention(options.layer(2).causal(true));
/// auto y = attention->forward(torch::randn({2, 10, 64}));  // [B, L, E]
/// @endcode
///
/// D is E / (2 H), and Dv is 2 D. lambda is its initial value + exp(lambda_q1 . lambda_k1) -
/// exp(lambda_q2 . lambda_k2); it is learned, and all heads share it. Each head's output is
/// normalized and multiplied by 1 - lambda's initial value.
///
/// Parameters: fc_q, fc_k, fc_v and fc_out, each a Linear(E, E); lambda_q1, lambda_k1, lambda_q2
/// and lambda_k2, each [D], initialized from a normal distribution with standard deviation 0.1;
/// norm, an RMSNorm(2 D).
class HEED_API DifferentialAttentionImpl : public Cloneable<DifferentialAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit DifferentialAttentionImpl(const DifferentialAttentionOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Causal self-attention for token-by-token decoding, with a cache that `make_cache` returned;
  /// see GroupQueryAttention.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache.
  /// Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer = 0) const;

  /// Returns an empty cache for `batch` sequences of up to `capacity` tokens.
  KVCache make_cache(int64_t batch, int64_t capacity, const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages, for sequences that come and go.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// The options given at construction.
  DifferentialAttentionOptions options;
  HeadSizes head_sizes;  ///< of the pairs of heads: their numbers, and 2 D
  /// The parameters named above.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_k{nullptr}, fc_v{nullptr}, fc_out{nullptr};
  at::Tensor lambda_q1, lambda_k1, lambda_q2, lambda_k2;
  RMSNorm norm{nullptr};
  /// @}
  RotaryEmbedding rotary{nullptr};  ///< empty unless options.rotary()

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);

 private:
  HEED_LOCAL at::Tensor forward_appended(const at::Tensor& x, detail::AppendedTokens& tokens) const;
  HEED_LOCAL double first_lambda() const;
  HEED_LOCAL at::Tensor difference(const at::Tensor& first, const at::Tensor& second) const;
};
TORCH_MODULE(DifferentialAttention);

}  // namespace heed
