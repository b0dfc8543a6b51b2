#pragma once

#include <heed/attend_options.h>
#include <heed/kv_cache.h>
#include <heed/paged_kv_cache.h>
#include <heed/rotary_embedding.h>

#include <c10/util/SmallVector.h>

#include <exception>
#include <vector>

#include "modules/heads.h"

/// Code that modules share for decoding with a cache.

namespace heed::detail {

struct AppendedSequence;

/// An empty cache for the keys that `weight` projects: on its device, and in its dtype or
/// autocast's. It has no window if the capacity is smaller than the window, or if shapes are fixed.
KVCache make_cache(KVCacheOptions options, const CacheOptions& asked, const at::Tensor& weight);

/// The same in pages; `options` say what a cache of one sequence would have.
PagedKVCache make_paged_cache(const KVCacheOptions& options, int64_t pages,
                              const PagedCacheOptions& asked, const at::Tensor& weight);

/// Checks for a dtype that attention takes, or int8.
void check_cache_dtype(const char* function, at::ScalarType dtype);

/// Checks that a module which decodes with a cache drops nothing at random: `probability` of one
/// that is in training mode or not.
void check_no_dropout(const char* function, const char* name, double probability, bool training);

/// Checks dtype and device of what is written to `cache`, and that no gradient is lost.
void check_written(const char* function, const char* name, const at::Tensor& tensor,
                   const at::Tensor& cache);

/// The memory of a cache: zeros(columns, dtype) for keys and values, and for the scales of int8
/// ones.
template <typename Options, typename Zeros>
std::vector<at::Tensor> allocate_stored(const Options& options, const Zeros& zeros) {
  const auto head_dim = options.head_dim();
  std::vector<at::Tensor> stored = {
      zeros(head_dim, options.dtype()),
      zeros(options.value_head_dim().value_or(head_dim), options.dtype())};
  if (options.dtype() == at::kChar) {
    for (int scales = 0; scales < 2; ++scales) stored.push_back(zeros(1, at::kFloat));
  }
  return stored;
}

/// What a cache stores: key and value [.., D], and if its dtype is int8 their scales [.., 1].
std::vector<at::Tensor> as_stored(const at::Tensor& key, const at::Tensor& value,
                                  at::ScalarType dtype);

/// Checks for rising positions in [first, end), the tokens of the last append.
void check_kept(const char* function, at::IntArrayRef positions, int64_t first, int64_t end);

/// Checks counts [B] of the `appended` tokens of each sequence of a KVCache; none are all.
void check_counts(at::IntArrayRef counts, int64_t batch, int64_t appended);

/// The greatest length that a sequence's keys are rotated for with these tokens, if it was
/// `before`. Throws unless the cached ones were rotated as the new ones will be, with
/// LongRopeScaling that changes beyond the length `border`.
int64_t rotated_length(const char* function, const AppendedSequence& tokens, int64_t before,
                       int64_t border);

/// Checks for [1, T, ..], the tokens of the step.
void check_step_tokens(const char* function, const char* name, const at::Tensor& tensor,
                       const PagedStep& step);

/// If an exception ends its scope, gives caches the lengths back that they had when it was made:
/// what a cache holds beyond its length counts for nothing. Keys that a window has
/// evicted meanwhile stay away; no later query sees them.
class UndoOnError {
 public:
  explicit UndoOnError(KVCache& cache) : UndoOnError(&cache, 1) {}
  explicit UndoOnError(std::vector<KVCache>& caches) : UndoOnError(caches.data(), caches.size()) {}
  UndoOnError(const UndoOnError&) = delete;
  UndoOnError& operator=(const UndoOnError&) = delete;
  ~UndoOnError();

 private:
  /// The numbers that a cache had of its tokens.
  struct Before {
    int64_t appends, last_count;
    c10::SmallVector<int64_t, 12> numbers;  // stored, dropped and appended, of each sequence
    at::Tensor last_counts;
  };
  UndoOnError(KVCache* caches, size_t count);
  static void undo(KVCache& cache, const Before& before) noexcept;

  KVCache* const caches_;
  c10::SmallVector<Before, 1> before_;
  const int exceptions_ = std::uncaught_exceptions();
};

/// The tokens that a call of forward_cached appends to a cache of either kind: [B, L].
class AppendedTokens {
 public:
  AppendedTokens(const AppendedTokens&) = delete;
  AppendedTokens& operator=(const AppendedTokens&) = delete;
  virtual ~AppendedTokens() = default;

  /// Checks that a cache with a window keeps all keys that the call's window sees, and that
  /// `attend` will not refuse the call, before anything is appended.
  void check(const AttendOptions& call) const;

  /// Their angles, in the dtype of `like`.
  virtual RotaryAngles angles(const RotaryEmbedding& rotary, int64_t length,
                              const at::TensorOptions& like) const = 0;

  /// Heads in the cache's dtype, which may differ from autocast's; as they are for int8.
  at::Tensor as_cached(const at::Tensor& heads) const;

  virtual void append(const at::Tensor& key, const at::Tensor& value) = 0;

  /// What is cached, for `attend`: parts of it by groups or elements may be taken.
  /// @{
  virtual at::Tensor keys() const = 0;
  virtual at::Tensor values() const = 0;
  /// @}

  /// Lets their queries attend causally to keys and values that are the cache's, or parts of them.
  at::Tensor attend(const Heads& heads, const AttendOptions& call) const;

  /// Appends key and value, and lets query attend to all that is cached.
  at::Tensor append_and_attend(const Heads& heads, const AttendOptions& call);

 protected:
  explicit AppendedTokens(const char* function) : function_(function) {}
  virtual at::ScalarType dtype() const = 0;
  virtual std::optional<int64_t> window() const = 0;
  virtual at::Tensor key_scales() const = 0;
  virtual at::Tensor value_scales() const = 0;
  virtual void check_kind(const AttendOptions& /*call*/) const {}
  virtual at::Tensor attend_causally(const Heads& heads, AttendOptions call) const = 0;

  const char* const function_;  // names errors
};

/// Appended to a KVCache: counts[b] of each sequence; all if there are no counts. Taken back if an
/// exception follows.
class TokensOfBatch final : public AppendedTokens {
 public:
  TokensOfBatch(const char* function, KVCache& cache, at::IntArrayRef counts)
      : AppendedTokens(function), cache_(cache), counts_(counts), undo_(cache) {}

  RotaryAngles angles(const RotaryEmbedding& rotary, int64_t length,
                      const at::TensorOptions& like) const override;
  void append(const at::Tensor& key, const at::Tensor& value) override {
    cache_.append(key, value, counts_);
  }
  at::Tensor keys() const override { return cache_.keys(); }
  at::Tensor values() const override { return cache_.values(); }

 private:
  at::ScalarType dtype() const override { return cache_.options().dtype(); }
  std::optional<int64_t> window() const override { return cache_.options().window(); }
  at::Tensor key_scales() const override { return cache_.key_scales(); }
  at::Tensor value_scales() const override { return cache_.value_scales(); }
  at::Tensor attend_causally(const Heads& heads, AttendOptions call) const override;

  KVCache& cache_;
  const at::IntArrayRef counts_;
  const UndoOnError undo_;
};

/// Appended by a step of a PagedKVCache: a batch of one, [1, T].
class TokensOfStep final : public AppendedTokens {
 public:
  /// Checks that x [1, T, E] has the step's tokens.
  TokensOfStep(const char* function, const at::Tensor& x, PagedStep& step, int64_t layer);

  RotaryAngles angles(const RotaryEmbedding& rotary, int64_t length,
                      const at::TensorOptions& like) const override;
  void append(const at::Tensor& key, const at::Tensor& value) override;
  at::Tensor keys() const override { return step_.key_pages(layer_); }
  at::Tensor values() const override { return step_.value_pages(layer_); }

 private:
  at::ScalarType dtype() const override { return step_.options().dtype(); }
  std::optional<int64_t> window() const override { return step_.options().window(); }
  at::Tensor key_scales() const override { return step_.key_scales(layer_); }
  at::Tensor value_scales() const override { return step_.value_scales(layer_); }
  void check_kind(const AttendOptions& call) const override;
  at::Tensor attend_causally(const Heads& heads, AttendOptions call) const override;

  PagedStep& step_;
  const int64_t layer_;
};

}  // namespace heed::detail
