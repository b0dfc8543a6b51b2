#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace heed {

/// Options of `KVCache`.
struct HEED_API KVCacheOptions {
  /// Required options.
  KVCacheOptions(int64_t batch, int64_t groups, int64_t capacity, int64_t head_dim)
      : batch_(batch), groups_(groups), capacity_(capacity), head_dim_(head_dim) {}
  /// B.
  TORCH_ARG(int64_t, batch);
  /// G.
  TORCH_ARG(int64_t, groups);
  /// Keys that each sequence has room for.
  TORCH_ARG(int64_t, capacity);
  /// D.
  TORCH_ARG(int64_t, head_dim);
  /// Dv; D unless given. May be 0, where values are a part of the keys.
  TORCH_ARG(std::optional<int64_t>, value_head_dim) = std::nullopt;
  /// For causal attention with this window: keys that no later query sees make room for new ones,
  /// so that a sequence has no end. A capacity of twice the window moves each key once on average.
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Of the keys and values.
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  /// Where the keys and values are.
  TORCH_ARG(at::Device, device) = at::kCPU;
};

/// Keys and values of the tokens so far, for causal attention that goes on token by token.
///
/// Memory is allocated once; appending copies the new keys and values and nothing else. The
/// sequences of a batch may have different lengths. It holds no gradients.
class HEED_API KVCache {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit KVCache(const KVCacheOptions& options);
  /// Moved, not copied by accident: see `clone`.
  /// @{
  KVCache(KVCache&&) = default;
  KVCache& operator=(KVCache&&) = default;
  /// @}

  /// A cache of its own with the same content.
  KVCache clone() const;

  /// Appends key [B, G, n, D] and value [B, G, n, Dv] in the cache's dtype and on its device. With
  /// counts [B], sequence b gets only the first counts[b] of the n.
  /// Throws c10::ValueError, and leaves the cache as it was, when a shape, dtype, device or count
  /// is wrong, when there is no room, and when a gradient would be lost.
  void append(const at::Tensor& key, const at::Tensor& value, at::IntArrayRef counts = {});

  /// What is stored: views [B, G, S, D] and [B, G, S, Dv], S being the most that any sequence has.
  /// @{
  at::Tensor keys() const;
  at::Tensor values() const;
  /// @}

  /// Tokens appended to each sequence so far, those that made room included: the next one's
  /// position.
  std::vector<int64_t> lengths() const;

  /// Positions of the next `count` tokens, for a rotary embedding: int64 [count], or [B, count]
  /// where the sequences' lengths differ.
  at::Tensor next_positions(int64_t count) const;

  /// Which of `keys()` the n tokens of the last append may see, causally and within `window`:
  /// undefined where the sequences have the same length, because causal and window already express
  /// it; else bool [B, 1, n, S].
  at::Tensor mask(std::optional<int64_t> window = std::nullopt) const;

  /// How far the n tokens of the last append stand from `keys()`: int64 [B, 1, n, S].
  at::Tensor distances() const;

  /// Forgets all tokens.
  void reset();

  /// Forgets the tokens from position `length` on, in every sequence that has them.
  /// Throws c10::ValueError when keys that the window of the next token needs have been evicted.
  void truncate(int64_t length);

  /// Sequence b becomes what sequence indices[b] was, as beam search asks for; indices int64 [B].
  /// Throws c10::ValueError when an index names no sequence.
  void reorder(const at::Tensor& indices);

  /// Makes room for `capacity` keys: allocates anew and copies.
  /// Throws c10::ValueError when that is less than there is.
  void grow(int64_t capacity);

  /// As given, with the capacity that `grow` made of it.
  const KVCacheOptions& options() const { return options_; }

 private:
  HEED_LOCAL void make_room(int64_t count);
  HEED_LOCAL int64_t needed(int64_t b) const;
  HEED_LOCAL int64_t stored() const;
  HEED_LOCAL at::Tensor last_query_indices() const;
  HEED_LOCAL at::Tensor key_indices() const;

  KVCacheOptions options_;
  at::Tensor keys_;    // [B, G, capacity, D]
  at::Tensor values_;  // [B, G, capacity, Dv]
  // Of each sequence: how many keys are stored, how many made room for them, and how many of those
  // stored came with the last append.
  std::vector<int64_t> stored_;
  std::vector<int64_t> dropped_;
  std::vector<int64_t> appended_;
  int64_t last_count_ = 0;  // n of the last append
};

}  // namespace heed
