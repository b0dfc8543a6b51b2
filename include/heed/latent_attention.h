// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend.h>
#include <heed/attention_inputs.h>
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
#include <tuple>

namespace heed {

/// Options of `LatentAttention`. The first `plain_head_dim` of a head's D elements do not depend on
/// positions; the last `rotary_head_dim` elements are rotated.
struct HEED_API LatentAttentionOptions {
  /// Required options.
  LatentAttentionOptions(int64_t emb_dim, int64_t head_num, int64_t key_rank)
      : emb_dim_(emb_dim), head_num_(head_num), key_rank_(key_rank) {}
  HEED_NO_BOOL(LatentAttentionOptions);
  /// E.
  HEED_NUMBER_ARG(int64_t, emb_dim);
  /// H.
  HEED_NUMBER_ARG(int64_t, head_num);
  /// R, the size of the latent vector from which a token's keys and values are computed.
  HEED_NUMBER_ARG(int64_t, key_rank);
  /// The size of the latent vector from which queries are computed; by default there is none, and
  /// queries are projected from the input.
  HEED_NUMBER_ARG(std::optional<int64_t>, query_rank) = std::nullopt;
  /// The number of elements of a head that are not rotated.
  HEED_NUMBER_ARG(int64_t, plain_head_dim) = 128;
  /// The number of elements of a head that are rotated; must be even.
  HEED_NUMBER_ARG(int64_t, rotary_head_dim) = 64;
  /// Dv.
  HEED_NUMBER_ARG(int64_t, value_head_dim) = 128;
  /// Rotary embedding of the rotated part; its head_dim must be rotary_head_dim. The default has
  /// interleaved pairs and base 10,000.
  TORCH_ARG(std::optional<RotaryEmbeddingOptions>, rotary) = std::nullopt;
  /// Factor on the scores; 1 / sqrt(D) by default, times m(mscale_all_dim)^2 where `rotary` has a
  /// YarnScaling: see there.
  HEED_NUMBER_ARG(std::optional<double>, scale) = std::nullopt;
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// Added to the mean square inside the norms.
  HEED_NUMBER_ARG(double, norm_eps) = 1e-6;
  /// As in AttendOptions; applies to every call.
  TORCH_ARG(bool, causal) = true;
  /// Whether fc_q_down, fc_kv_down and fc_o add biases.
  TORCH_ARG(bool, bias) = false;
};

/// Multi-head latent attention: the keys and values of all heads are computed from one small latent
/// vector per token; in addition, the heads share one rotated key. DeepSeek-AI 2024
/// (arXiv:2405.04434).
///
/// @code
/// heed::LatentAttentionOptions options(/*emb_dim=*/256, /*head_num=*/4, /*key_rank=*/64);
/// heed::LatentAttention attention(options);
/// auto y = attention->forward(torch::randn({2, 10, 256}));  // [B, L, E]
/// @endcode
///
/// A cache holds only the latent vector and the rotated key: R + rotary_head_dim numbers per token.
/// When decoding from a cache, queries are projected into the latent space, instead of keys out of
/// it. This gives the same scores.
///
/// Parameters, with D = plain_head_dim + rotary_head_dim: fc_q, a Linear(E, H * D), or, with
/// query_rank, fc_q_down, q_norm and fc_q_up; fc_kv_down, a Linear(E, R + rotary_head_dim);
/// kv_norm, an RMSNorm(R); fc_kv_up, a Linear(R, H * (plain_head_dim + Dv)); fc_o, a
/// Linear(H * Dv, E). By default, none has a bias.
class HEED_API LatentAttentionImpl : public Cloneable<LatentAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit LatentAttentionImpl(const LatentAttentionOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; inputs: a mask, or an AttentionInputs; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const AttentionInputs& inputs = {});

  /// Causal self-attention for token-by-token decoding, with a cache that `make_cache` returned;
  /// see GroupQueryAttention.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {},
                            const AttentionInputs& inputs = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache.
  /// Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer = 0,
                            const AttentionInputs& inputs = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(const at::Tensor& x,
                                                          const AttentionInputs& inputs = {}) const;

  /// Returns an empty cache of latent vectors for `batch` sequences of up to `capacity` tokens.
  KVCache make_cache(int64_t batch, int64_t capacity, const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages, for sequences that come and go.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// The options given at construction.
  LatentAttentionOptions options;
  HeadSizes head_sizes;  ///< those of the options; D is plain_head_dim + rotary_head_dim
  /// The layers named above; empty if the options do not ask for them.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_q_down{nullptr}, fc_q_up{nullptr};
  torch::nn::Linear fc_kv_down{nullptr}, fc_kv_up{nullptr}, fc_o{nullptr};
  RMSNorm q_norm{nullptr}, kv_norm{nullptr};
  /// @}
  RotaryEmbedding rotary{nullptr};  ///< of the rotated part

 protected:
  HEED_DEFAULT_ARGS(1, AttentionInputs);

 private:
  HEED_LOCAL at::Tensor forward_appended(const at::Tensor& x, detail::AppendedTokens& tokens,
                                         const AttentionInputs& inputs) const;
  struct Parts;
  struct Heads;
  HEED_LOCAL Parts project(const at::Tensor& x, const RotaryAngles& angles) const;
  HEED_LOCAL Heads project_heads(const at::Tensor& x, const AttentionInputs& inputs) const;
  HEED_LOCAL AttendOptions attend_options(const AttentionInputs& inputs) const;
  HEED_LOCAL at::Tensor output(const at::Tensor& attended) const;
};
TORCH_MODULE(LatentAttention);

}  // namespace heed
