// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace heed {

namespace detail {
class TokensOfBatch;
class UndoOnError;
}  // namespace detail

/// Options of `KVCache`.
struct HEED_API KVCacheOptions {
  /// Required options.
  KVCacheOptions(int64_t batch, int64_t groups, int64_t capacity, int64_t head_dim)
      : batch_(batch), groups_(groups), capacity_(capacity), head_dim_(head_dim) {}
  HEED_NO_BOOL(KVCacheOptions);
  /// B.
  HEED_NUMBER_ARG(int64_t, batch);
  /// G.
  HEED_NUMBER_ARG(int64_t, groups);
  /// The number of keys that each sequence has room for.
  HEED_NUMBER_ARG(int64_t, capacity);
  /// D.
  HEED_NUMBER_ARG(int64_t, head_dim);
  /// Dv; D by default. May be 0 if the values are a part of the keys.
  HEED_NUMBER_ARG(std::optional<int64_t>, value_head_dim) = std::nullopt;
  /// The window of the causal attention that uses the cache: keys that no later query can see are
  /// evicted, so that a sequence can grow without end. With a capacity of twice the window, each
  /// key is moved once on average.
  HEED_NUMBER_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Dtype of the keys and values. torch::kChar keeps them as int8, with a float32 scale for each
  /// head and token; see `quantize_int8`.
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  /// Device of the keys and values.
  TORCH_ARG(at::Device, device) = at::kCPU;
  /// Keeps the lengths on the device, so that each step has the same shapes and writes to the same
  /// memory: then a CUDA graph can hold it. What other programs call a static cache. `keys()` and
  /// `values()` are the whole capacity, `lengths()` waits for the device, and there must be no
  /// window. Where the device is not the CPU, only the device notices that the capacity is
  /// exceeded, or that a LongRopeScaling needs the sequence to be read again. On the CPU this is
  /// for tests: attention reads the whole capacity.
  TORCH_ARG(bool, fixed_shapes) = false;
};

/// Options of a module's `make_cache` or `make_caches`.
struct HEED_API CacheOptions {
  /// See KVCacheOptions; that of the module's projections, or autocast's, by default.
  TORCH_ARG(std::optional<at::ScalarType>, dtype) = std::nullopt;
  /// See KVCacheOptions. Without a window, whatever the module's is: nothing is evicted.
  TORCH_ARG(bool, fixed_shapes) = false;
};

/// The keys and values of all tokens so far, for decoding token by token with causal attention.
///
/// @code
/// torch::NoGradGuard no_grad;
/// attention->eval();
/// auto cache = attention->make_cache(/*batch=*/1, /*capacity=*/100);
/// auto y = attention->forward_cached(prompt, cache);  // prompt [1, L, E]
/// auto z = attention->forward_cached(token, cache);   // the next token [1, 1, E]
/// @endcode
///
/// With `fixed_shapes`, a CUDA graph can hold a whole step:
///
/// @code
/// auto cache = attention->make_cache(1, 100, heed::CacheOptions().fixed_shapes(true));
/// @endcode
///
/// Memory is allocated once; appending copies only the new keys and values. The sequences of a
/// batch may have different lengths. A cache holds no gradients, and a module in training mode with
/// dropout refuses it.
///
/// A call that throws, of a cache or of a module's `forward_cached`, leaves each of its caches with
/// the tokens that it had, and can be repeated. Of a window, keys that no later query sees may be
/// gone; the last append then counts as one without tokens.
class HEED_API KVCache {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit KVCache(const KVCacheOptions& options);
  /// A cache can be moved. To copy it, call `clone`.
  /// @{
  KVCache(KVCache&&) = default;
  KVCache& operator=(KVCache&&) = default;
  /// @}

  /// Returns an independent copy.
  KVCache clone() const;

  /// Appends key [B, G, n, D] and value [B, G, n, Dv], which must have the cache's device and
  /// dtype; any floating dtype for int8. With counts [B], only the first counts[b] of the n keys
  /// and values are appended to sequence b. Throws c10::ValueError when a shape, dtype, device or
  /// count is invalid, when the capacity is exceeded, and when a gradient would be lost.
  void append(const at::Tensor& key, const at::Tensor& value, at::IntArrayRef counts = {});

  /// The stored keys and values: views [B, G, S, D] and [B, G, S, Dv], where S is the number of
  /// stored keys of the longest sequence, or the capacity with `fixed_shapes`.
  /// @{
  at::Tensor keys() const;
  at::Tensor values() const;
  /// @}

  /// The scales of int8 keys and values, for AttendOptions: views [B, G, S]; undefined otherwise.
  /// Values that are a part of the keys have those of the keys.
  /// @{
  at::Tensor key_scales() const;
  at::Tensor value_scales() const;
  /// @}

  /// Returns how many tokens have been appended to each sequence, including evicted ones. This is
  /// the position of the next token. With `fixed_shapes`, this waits for the device.
  std::vector<int64_t> lengths() const;

  /// Returns how many of `keys()` each sequence has: int64 [B], on the cache's device; with
  /// `fixed_shapes` a view that changes with the cache.
  at::Tensor key_lengths() const;

  /// Returns how many of the n tokens of the last append each sequence has: int64 [B], on the
  /// cache's device. Undefined if each has all.
  at::Tensor query_lengths() const;

  /// Whether the sequences have the same length, and each has all tokens of the last append. Never
  /// with `fixed_shapes`, because the lengths are unknown.
  bool has_equal_lengths() const;

  /// Returns the positions of the next `count` tokens, for a rotary embedding: int64 [count], or
  /// [B, count] if the sequences have different lengths or `fixed_shapes`. A rotary embedding with
  /// sections takes them after `unsqueeze(-1)`: they are the same on every axis.
  at::Tensor next_positions(int64_t count) const;

  /// Returns which of `keys()` the n tokens of the last append may see, causally and within
  /// `window`: bool [B, 1, n, S]. Undefined if `has_equal_lengths()`, because causal and window
  /// already express it.
  at::Tensor mask(std::optional<int64_t> window = std::nullopt) const;

  /// Returns the distances between the n tokens of the last append and `keys()`:
  /// int64 [B, 1, n, S].
  at::Tensor distances() const;

  /// Removes all tokens.
  void reset();

  /// Removes the tokens from position `length` on, in every sequence that has them.
  /// Throws c10::ValueError when keys that the window of the next token needs have been evicted.
  void truncate(int64_t length);
  /// Removes the tokens from position `length` on, in one sequence. After `truncate(b, 0)`,
  /// another sequence can take the place of b.
  void truncate(int64_t sequence, int64_t length);

  /// Replaces sequence b with a copy of sequence indices[b], as beam search needs it; indices
  /// [B] is int64. On another device than the CPU, indices are read, which waits for the device,
  /// if the sequences have different lengths without `fixed_shapes`; otherwise only the device
  /// notices those out of range.
  /// Throws c10::ValueError when an index is out of range.
  void reorder(const at::Tensor& indices);

  /// Increases the capacity to `capacity` keys: allocates new memory and copies. A CUDA graph that
  /// was captured before goes on with the old memory.
  /// Throws c10::ValueError when that is less than the present capacity.
  void grow(int64_t capacity);

  /// The options given at construction, with the capacity that `grow` set.
  const KVCacheOptions& options() const { return options_; }

 private:
  friend class detail::TokensOfBatch;
  friend class detail::UndoOnError;
  HEED_LOCAL KVCache(const KVCache&) = default;  // shares the tensors
  HEED_LOCAL void rotate_for(const char* function, int64_t count, at::IntArrayRef counts,
                             int64_t border);
  HEED_LOCAL void make_room(int64_t count, at::IntArrayRef counts);
  HEED_LOCAL void evict(size_t b, int64_t kept);
  HEED_LOCAL void append_fixed(const std::vector<at::Tensor>& added, int64_t count,
                               at::IntArrayRef counts);
  HEED_LOCAL void shorten_fixed() noexcept;
  HEED_LOCAL void forget_last_append();
  HEED_LOCAL void check_truncated(size_t b, int64_t length) const;
  HEED_LOCAL void cut(size_t b, int64_t length);
  HEED_LOCAL int64_t needed(int64_t b) const;
  HEED_LOCAL int64_t stored() const;
  HEED_LOCAL void check_room(int64_t count, at::IntArrayRef counts) const;
  HEED_LOCAL void write(const std::vector<at::Tensor>& added, const at::Tensor& first,
                        const at::Tensor& counts);
  HEED_LOCAL at::Tensor last_query_indices() const;
  HEED_LOCAL at::Tensor key_indices() const;

  KVCacheOptions options_;
  // Keys [B, G, capacity, D] and values [B, G, capacity, Dv], then the scales of int8 ones: float32
  // [B, G, capacity, 1].
  std::vector<at::Tensor> stored_heads_;
  // With fixed shapes: int64 [B], how many keys each sequence has, and how many of the last append;
  // undefined if all.
  at::Tensor fixed_lengths_;
  at::Tensor last_counts_;
  // Without, for each sequence: how many keys are stored, how many have been evicted, and how many
  // of the stored ones came with the last append.
  std::vector<int64_t> stored_;
  std::vector<int64_t> dropped_;
  std::vector<int64_t> appended_;
  int64_t last_count_ = 0;  // n of the last append
  int64_t appends_ = 0;     // that were not undone
  // With LongRopeScaling, for each sequence: the greatest length that its keys were rotated for.
  // With fixed shapes int64 [B].
  std::vector<int64_t> rotated_for_;
  at::Tensor fixed_rotated_for_;
};

}  // namespace heed
