// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend_options.h>
#include <heed/head_sizes.h>
#include <heed/kv_cache.h>
#include <heed/paged_kv_cache.h>
#include <heed/rotary_embedding.h>

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <vector>

#include "modules/heads.h"

/// Code that modules share for decoding with a cache.

namespace heed::detail {

struct AppendedSequence;

/// Makes an empty cache for keys that `weight` projects: on its device, and in its dtype or
/// autocast's. The cache has no window if its capacity is smaller than the window, or if its
/// shapes are fixed.
KVCache make_cache(const HeadSizes& sizes, std::optional<int64_t> window, int64_t batch,
                   int64_t capacity, const CacheOptions& asked, const at::Tensor& weight);

/// Makes an empty cache with `pages` pages, like make_cache.
PagedKVCache make_paged_cache(const HeadSizes& sizes, std::optional<int64_t> window, int64_t pages,
                              const PagedCacheOptions& asked, const at::Tensor& weight);

/// Whether a cache of this dtype is quantized: its rows are stored with scales.
inline bool is_quantized(at::ScalarType dtype) { return dtype == at::kChar; }

/// Checks that a cache may have this dtype: one that attention takes, or a quantized one.
void check_cache_dtype(const char* function, at::ScalarType dtype);

/// Checks that a module with a cache has no dropout: `training` must be false, or `probability` 0.
void check_no_dropout(const char* function, const char* name, double probability, bool training);

/// Checks that `tensor` may be written to `cache`: its dtype and device, and that it needs no
/// gradient.
void check_written(const char* function, const char* name, const at::Tensor& tensor,
                   const at::Tensor& cache);

/// How many keys, its own included, a causal query sees at most: a module's window, or its
/// left_window + 1.
template <typename Options>
std::optional<int64_t> causal_window(const Options& options) {
  const auto left = options.left_window();
  if (!left) return options.window();
  return std::min(*left, std::numeric_limits<int64_t>::max() - 1) + 1;
}

/// The oldest position that a token at position `next` sees through the window.
inline int64_t oldest_seen(std::optional<int64_t> window, int64_t next) {
  return window ? std::max<int64_t>(next - *window + 1, 0) : 0;
}

/// Checks that a sequence whose keys before position `evicted` have been evicted may be truncated
/// to `length`: the next token must see none of them, or no key at all.
void check_keys_left(const char* function, std::optional<int64_t> window, int64_t length,
                     int64_t evicted);

/// Allocates the memory of a cache by calls of zeros(columns, dtype): keys and values, and for
/// quantized ones also their scales.
template <typename Options, typename Zeros>
std::vector<at::Tensor> allocate_stored(const Options& options, const Zeros& zeros) {
  const auto head_dim = options.head_dim();
  std::vector<at::Tensor> stored = {
      zeros(head_dim, options.dtype()),
      zeros(options.value_head_dim().value_or(head_dim), options.dtype())};
  if (is_quantized(options.dtype())) {
    for (int scales = 0; scales < 2; ++scales) stored.push_back(zeros(1, at::kFloat));
  }
  return stored;
}

/// Converts key and value to the tensors that a cache of this dtype stores: key and value [.., D],
/// and, if it is quantized, their scales [.., 1].
std::vector<at::Tensor> as_stored(const at::Tensor& key, const at::Tensor& value,
                                  at::ScalarType dtype);

/// Checks counts [B], which say how many of the `appended` tokens each sequence of a KVCache gets.
/// If there are no counts, each gets all of them.
void check_counts(at::IntArrayRef counts, int64_t batch, int64_t appended);

/// For LongRopeScaling, which rotates by other factors beyond the length `border`. Returns the
/// greatest length for which a sequence's keys have been rotated once `tokens` are appended; it
/// was `before`. Throws if cached keys and new keys would be rotated by different factors.
int64_t rotated_length(const char* function, const AppendedSequence& tokens, int64_t before,
                       int64_t border);

/// Checks that a tensor is [1, T, ..] and T is the number of the step's tokens.
void check_step_tokens(const char* function, const char* name, const at::Tensor& tensor,
                       const PagedStep& step);

/// If an exception ends its scope, restores the lengths that the caches had when this object was
/// made. Stored tokens beyond a cache's length are ignored. Keys that a window has evicted
/// meanwhile are not restored, because no later query sees them.
class UndoOnError {
 public:
  explicit UndoOnError(KVCache& cache) : UndoOnError(&cache, 1) {}
  explicit UndoOnError(std::vector<KVCache>& caches) : UndoOnError(caches.data(), caches.size()) {}
  UndoOnError(const UndoOnError&) = delete;
  UndoOnError& operator=(const UndoOnError&) = delete;
  ~UndoOnError();

 private:
  /// A cache's counts of tokens before the scope.
  struct Before {
    int64_t appends, last_count;
    c10::SmallVector<int64_t, 12> numbers;  // stored_, dropped_ and appended_ of the cache
    at::Tensor last_counts;
  };
  UndoOnError(KVCache* caches, size_t count);
  static void undo(KVCache& cache, const Before& before) noexcept;

  KVCache* const caches_;
  c10::SmallVector<Before, 1> before_;
  const int exceptions_ = std::uncaught_exceptions();
};

/// The tokens [B, L] that a call of forward_cached appends to a KVCache or PagedKVCache.
class AppendedTokens {
 public:
  AppendedTokens(const AppendedTokens&) = delete;
  AppendedTokens& operator=(const AppendedTokens&) = delete;
  virtual ~AppendedTokens() = default;

  /// To be called before anything is appended. Checks that a cache with a window keeps all keys
  /// that the call's window sees, and that `attend` will accept the call.
  void check(const AttendOptions& call) const;

  /// The angles of the tokens, for the dtype of `like`.
  virtual RotaryAngles angles(const RotaryEmbedding& rotary, int64_t length,
                              const at::TensorOptions& like) const = 0;

  /// Under autocast, converts heads to the cache's dtype, which may differ from autocast's. With
  /// a quantized cache, returns them unchanged.
  at::Tensor as_cached(const at::Tensor& heads) const;

  virtual void append(const at::Tensor& key, const at::Tensor& value) = 0;

  /// The cached keys and values, for `attend`. A caller may take some of their groups or elements.
  /// @{
  virtual at::Tensor keys() const = 0;
  virtual at::Tensor values() const = 0;
  /// @}

  /// Computes causal attention of the tokens' queries to keys() and values(), or to parts of them.
  at::Tensor attend(const Heads& heads, const AttendOptions& call) const;

  /// Appends key and value, and computes attention of the query to all cached tokens.
  at::Tensor append_and_attend(const Heads& heads, const AttendOptions& call);

 protected:
  /// `cache` are the options of the cache.
  template <typename Options>
  AppendedTokens(const char* function, const Options& cache)
      : function_(function), dtype_(cache.dtype()), window_(cache.window()) {}
  virtual at::Tensor key_scales() const = 0;
  virtual at::Tensor value_scales() const = 0;
  virtual void check_kind(const AttendOptions& /*call*/) const {}
  virtual at::Tensor attend_causally(const Heads& heads, AttendOptions call) const = 0;

  const char* const function_;  // the name with which errors begin
  const at::ScalarType dtype_;
  const std::optional<int64_t> window_;
};

/// Tokens that are appended to a KVCache: the first counts[b] tokens of sequence b, or all if
/// there are no counts. If an exception follows, they are removed again.
class TokensOfBatch final : public AppendedTokens {
 public:
  TokensOfBatch(const char* function, KVCache& cache, at::IntArrayRef counts)
      : AppendedTokens(function, cache.options()), cache_(cache), counts_(counts), undo_(cache) {}

  RotaryAngles angles(const RotaryEmbedding& rotary, int64_t length,
                      const at::TensorOptions& like) const override;
  void append(const at::Tensor& key, const at::Tensor& value) override {
    cache_.append(key, value, counts_);
  }
  at::Tensor keys() const override { return cache_.keys(); }
  at::Tensor values() const override { return cache_.values(); }

 private:
  at::Tensor key_scales() const override { return cache_.key_scales(); }
  at::Tensor value_scales() const override { return cache_.value_scales(); }
  at::Tensor attend_causally(const Heads& heads, AttendOptions call) const override;

  KVCache& cache_;
  const at::IntArrayRef counts_;
  const UndoOnError undo_;
};

/// Tokens [1, T] that a step appends to a PagedKVCache.
class TokensOfStep final : public AppendedTokens {
 public:
  /// Checks that x is [1, T, E], with one row for each token of the step.
  TokensOfStep(const char* function, const at::Tensor& x, PagedStep& step, int64_t layer);

  RotaryAngles angles(const RotaryEmbedding& rotary, int64_t length,
                      const at::TensorOptions& like) const override;
  void append(const at::Tensor& key, const at::Tensor& value) override;
  at::Tensor keys() const override { return step_.key_pages(layer_); }
  at::Tensor values() const override { return step_.value_pages(layer_); }

 private:
  at::Tensor key_scales() const override { return step_.key_scales(layer_); }
  at::Tensor value_scales() const override { return step_.value_scales(layer_); }
  void check_kind(const AttendOptions& call) const override;
  at::Tensor attend_causally(const Heads& heads, AttendOptions call) const override;

  PagedStep& step_;
  const int64_t layer_;
};

}  // namespace heed::detail
