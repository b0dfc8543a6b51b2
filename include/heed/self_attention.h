// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend_options.h>
#include <heed/head_sizes.h>
#include <heed/kv_cache.h>
#include <heed/module.h>
#include <heed/paged_kv_cache.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace heed {

/// Options of `SelfAttention`.
struct HEED_API SelfAttentionOptions {
  /// Required options.
  SelfAttentionOptions(int64_t embed_size, int64_t heads)
      : embed_size_(embed_size), heads_(heads) {}
  HEED_NO_BOOL(SelfAttentionOptions);
  /// E, the size of the inputs' and the output's last dimension; a multiple of heads.
  HEED_NUMBER_ARG(int64_t, embed_size);
  /// H, the number of heads; D = E / H.
  HEED_NUMBER_ARG(int64_t, heads);
};

/// Multi-head attention whose heads share one small query, key and value projection, and whose
/// scores are divided by sqrt(E). It is for models that were trained in this form; for new models,
/// use `MultiHeadAttention`.
///
/// @code
/// heed::SelfAttention attention(/*embed_size=*/64, /*heads=*/4);
/// auto x = torch::randn({2, 10, 64});                    // [B, L, E]
/// auto [output, weights] = attention->forward(x, x, x);  // weights [B, H, L, L]
/// @endcode
///
/// Parameters: values, keys, queries, each a Linear(D, D) without bias; fc_out, a Linear(E, E).
class HEED_API SelfAttentionImpl : public Cloneable<SelfAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit SelfAttentionImpl(const SelfAttentionOptions& options);
  /// Sets these options and leaves the others at their defaults.
  SelfAttentionImpl(int64_t embed_size, int64_t heads);
  HEED_NO_BOOL(SelfAttentionImpl);

  /// Registers the projections. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// value and key [B, S, E], query [B, L, E], in this order; mask as in AttendOptions.
  /// Returns {output [B, L, E], weights [B, H, L, S]}.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& value, const at::Tensor& key,
                                             const at::Tensor& query,
                                             const std::optional<at::Tensor>& mask = {});

  /// Causal self-attention for token-by-token decoding: appends the tokens of x [B, L, E] to
  /// `cache`, and lets each of them attend to all cached tokens up to itself. Returns [B, L, E],
  /// without weights. With counts [B], only the first counts[b] tokens of sequence b are used; the
  /// outputs of the others have no meaning.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache.
  /// Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer = 0) const;

  /// Returns an empty cache for `batch` sequences of up to `capacity` tokens. It has the dtype of
  /// the keys: the parameters' dtype or, under autocast, autocast's.
  /// Throws c10::ValueError when a size is below 1.
  KVCache make_cache(int64_t batch, int64_t capacity, const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages, for sequences that come and go.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// The options given at construction.
  SelfAttentionOptions options;
  HeadSizes head_sizes;  ///< those of the options
  /// The layers named above.
  /// @{
  torch::nn::Linear values{nullptr}, keys{nullptr}, queries{nullptr}, fc_out{nullptr};
  /// @}

 protected:
  HEED_DEFAULT_ARGS(3, std::optional<at::Tensor>);

 private:
  HEED_LOCAL at::Tensor forward_appended(const at::Tensor& x, detail::AppendedTokens& tokens) const;
};
TORCH_MODULE(SelfAttention);

}  // namespace heed
