// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend_options.h>
#include <heed/kv_cache.h>
#include <heed/module.h>
#include <heed/paged_kv_cache.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <ostream>
#include <tuple>

namespace heed {

/// Options of `Attention` and `AttentionV1`.
struct HEED_API AttentionOptions {
  /// Required options.
  /* implicit */ AttentionOptions(int64_t emb_dim) : emb_dim_(emb_dim) {}
  HEED_NO_BOOL(AttentionOptions);
  /// E, the size of the input's and the output's last dimension.
  HEED_NUMBER_ARG(int64_t, emb_dim);
  /// Probability in [0, 1) of dropping an attention weight, in training mode; 0.1 as in the
  /// documents that heed mirrors.
  HEED_NUMBER_ARG(double, dropout) = 0.1;
};

/// The base of `Attention` and `AttentionV1`: everything except the projections.
template <typename Derived>
class HEED_API AttentionImplBase : public Cloneable<Derived> {
 public:
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Self-attention: x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Returns {output [B, L, E], weights [B, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) const;

  /// Causal self-attention for token-by-token decoding: appends the tokens of x [B, L, E] to
  /// `cache`, and lets each of them attend to all cached tokens up to itself. Returns [B, L, E].
  /// With counts [B], only the first counts[b] tokens of sequence b are used; the outputs of the
  /// others have no meaning.
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
  AttentionOptions options;

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);

 private:
  HEED_LOCAL at::Tensor forward_appended(const at::Tensor& x, detail::AppendedTokens& tokens) const;
  friend Derived;
  /// Registers no projections; the derived class's `reset` does.
  explicit AttentionImplBase(const AttentionOptions& given) : options(given) {}
};

/// Single-head self-attention with separate query, key and value projections.
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1.
///
/// @code
/// heed::Attention attention(/*emb_dim=*/64);
/// auto x = torch::randn({2, 10, 64});                         // [B, L, E]
/// auto y = attention->forward(x, heed::causal_mask(10, 10));  // [B, L, E]
/// @endcode
///
/// Parameters: fc_q, fc_k, fc_v, each a Linear(E, E).
class HEED_API AttentionImpl : public AttentionImplBase<AttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit AttentionImpl(const AttentionOptions& options);
  /// Sets these options and leaves the others at their defaults.
  explicit AttentionImpl(int64_t emb_dim, double dropout = 0.1);
  HEED_NO_BOOL(AttentionImpl);

  /// Registers the projections. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();

  /// The layers named above.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_k{nullptr}, fc_v{nullptr};
  /// @}
};

/// `Attention` with the three projections packed into one matrix product.
///
/// Parameters: qkv, a Linear(E, 3E) with the rows of fc_q, fc_k and fc_v, in this order.
class HEED_API AttentionV1Impl : public AttentionImplBase<AttentionV1Impl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit AttentionV1Impl(const AttentionOptions& options);
  /// Sets these options and leaves the others at their defaults.
  explicit AttentionV1Impl(int64_t emb_dim, double dropout = 0.1);
  HEED_NO_BOOL(AttentionV1Impl);

  /// Registers the projection. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();

  /// The layer named above.
  torch::nn::Linear qkv{nullptr};
};

extern template class AttentionImplBase<AttentionImpl>;
extern template class AttentionImplBase<AttentionV1Impl>;

}  // namespace heed

HEED_MODULE(Attention, std::optional<at::Tensor>);
HEED_MODULE(AttentionV1, std::optional<at::Tensor>);
