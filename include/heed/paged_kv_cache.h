// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/arg.h>
#include <heed/attend_options.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace heed {

/// Options of `PagedKVCache`.
struct HEED_API PagedKVCacheOptions {
  /// Required options.
  PagedKVCacheOptions(int64_t pages, int64_t groups, int64_t head_dim)
      : pages_(pages), groups_(groups), head_dim_(head_dim) {}
  HEED_NO_BOOL(PagedKVCacheOptions);
  /// P, the number of pages in the pool, which all sequences share.
  HEED_NUMBER_ARG(int64_t, pages);
  /// G.
  HEED_NUMBER_ARG(int64_t, groups);
  /// D.
  HEED_NUMBER_ARG(int64_t, head_dim);
  /// Dv; D by default. May be 0 if the values are a part of the keys.
  HEED_NUMBER_ARG(std::optional<int64_t>, value_head_dim) = std::nullopt;
  /// The number of layers whose keys and values a page holds.
  HEED_NUMBER_ARG(int64_t, layers) = 1;
  /// The number of keys of a layer that a page has room for: a multiple of 16.
  HEED_NUMBER_ARG(int64_t, page_size) = 64;
  /// The window of the causal attention that uses the cache: pages whose keys no later query can
  /// see go back to the pool.
  HEED_NUMBER_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Dtype of the keys and values. torch::kChar keeps them as int8, with a float32 scale for each
  /// head and token; see `quantize_int8`.
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  /// Device of the keys and values.
  TORCH_ARG(at::Device, device) = at::kCPU;
};

/// Options of a module's `make_paged_cache`.
struct HEED_API PagedCacheOptions {
  /// See PagedKVCacheOptions; those of the module by default, which is one layer but for an Encoder
  /// or a Decoder.
  HEED_NUMBER_ARG(std::optional<int64_t>, layers) = std::nullopt;
  /// See PagedKVCacheOptions.
  HEED_NUMBER_ARG(int64_t, page_size) = 64;
  /// See PagedKVCacheOptions; that of the module's projections, or autocast's, by default.
  TORCH_ARG(std::optional<at::ScalarType>, dtype) = std::nullopt;
};

class PagedStep;
template <typename Derived, typename Options>
class MultiHeadAttentionImplBase;
namespace detail {
class AppendedTokens;
class MemoryRows;
class PagedCall;
class StepAngles;
class TokensOfStep;
}  // namespace detail

/// The keys and values of sequences that come and go at any time, in pages of one pool: a server's
/// cache. Kwon et al. 2023 (arXiv:2309.06180).
///
/// @code
/// auto cache = attention->make_paged_cache(/*pages=*/100);
/// torch::NoGradGuard no_grad;
/// const auto first = cache.add(), second = cache.add();
/// auto step = cache.append({first, second}, {5, 3});  // prompts of 5 and 3 tokens
/// auto y = attention->forward_cached(prompts, step);  // [1, 8, E]
/// const auto other = cache.fork(first);               // goes on from the same tokens
/// auto next = cache.append({first, second, other}, {1, 1, 1});
/// auto z = attention->forward_cached(tokens, next);  // [1, 3, E]
/// cache.remove(second);
/// @endcode
///
/// A sequence is named by the number that `add` or `fork` returned; numbers are not used again.
/// Sequences that were forked share their pages until one of them writes to a page, which is then
/// copied for it. Memory is allocated once. A cache holds no gradients. Calls from several threads
/// must not overlap.
///
/// A call of a cache that throws changes nothing.
class HEED_API PagedKVCache {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit PagedKVCache(const PagedKVCacheOptions& options);
  /// A cache can be moved, not copied.
  /// @{
  PagedKVCache(PagedKVCache&&) = default;
  PagedKVCache& operator=(PagedKVCache&&) = default;
  PagedKVCache(const PagedKVCache&) = delete;
  PagedKVCache& operator=(const PagedKVCache&) = delete;
  /// @}

  /// Adds a sequence without tokens, which takes no page.
  int64_t add();

  /// Adds a sequence with the tokens of `sequence`, which takes no page either.
  int64_t fork(int64_t sequence);

  /// Removes a sequence. Pages that no other sequence uses are free then.
  void remove(int64_t sequence);

  /// Removes the tokens from position `length` on; nothing if there are none.
  /// Throws c10::ValueError when keys that the window of the next token needs have been evicted.
  void truncate(int64_t sequence, int64_t length);

  /// Keeps, of the tokens of the last append to the sequence, those at `positions`, and moves them
  /// together: the accepted path of a tree of drafted tokens. Positions rise; none are kept if
  /// there are none. Throws c10::ValueError when a position is not one of the last append, or when
  /// the sequence was forked after it and too few pages are free for copies.
  void keep(int64_t sequence, at::IntArrayRef positions);

  /// Makes room for counts[n] tokens behind those of sequences[n], and returns the step in which
  /// their keys and values are written and attend.
  ///
  /// The tokens count from now on. If a step cannot be finished, `truncate` takes them back.
  /// With parents, one for each token, the tokens of a sequence are a tree of drafts, as in
  /// AttendOptions::parents: `keep` must follow.
  /// Throws c10::ValueError when a sequence is unknown or named twice, when a count is negative or
  /// a parent is not a token before, and when too few pages are free; see `pages_needed`.
  PagedStep append(at::IntArrayRef sequences, at::IntArrayRef counts, at::IntArrayRef parents = {});

  /// How many free pages `append` needs for these tokens. May be negative where a window lets go of
  /// more. Throws c10::ValueError as `append` does.
  int64_t pages_needed(at::IntArrayRef sequences, at::IntArrayRef counts) const;

  /// The number of pages that no sequence uses.
  int64_t pages_free() const;

  /// The number of tokens that were appended to the sequence, including evicted ones. This is the
  /// position of the next token.
  int64_t length(int64_t sequence) const;

  /// The options given at construction.
  const PagedKVCacheOptions& options() const;

 private:
  friend class PagedStep;
  struct HEED_LOCAL Growth;
  struct HEED_LOCAL State;
  std::shared_ptr<State> state_;
};

/// The tokens that one call of `PagedKVCache::append` made room for: T of N sequences, packed one
/// sequence after the other.
///
/// Each layer writes its keys and values, and attends. It must be used before the cache changes. A
/// layer whose call throws can be called again: it writes to the same places.
class HEED_API PagedStep {
 public:
  /// T.
  int64_t tokens() const { return tokens_; }

  /// Where each sequence's tokens end: int64 [N + 1] on the CPU, for `attend_paged`.
  const at::Tensor& query_offsets() const { return query_offsets_; }

  /// How many keys of each sequence lie in its pages, the new ones among them: int64 [N] on the
  /// CPU, for `attend_paged`.
  const at::Tensor& key_lengths() const { return key_lengths_; }

  /// The pages of each sequence: int64 [N, n] on the CPU, for `attend_paged`.
  const at::Tensor& page_table() const { return page_table_; }

  /// The parents that `append` was given: int64 [T] on the CPU, for AttendOptions; undefined if
  /// there are none.
  const at::Tensor& parents() const { return parents_; }

  /// The tokens' positions in their sequences, for a rotary embedding: int64 [T], on the cache's
  /// device. Those of drafts that follow the same token are equal.
  const at::Tensor& positions() const { return positions_; }

  /// Which of the T tokens is the last of each sequence that has some: int64 [at most N], on the
  /// cache's device.
  at::Tensor last_tokens() const;

  /// Says which row of a memory each of the N sequences attends to, in blocks with cross-attention.
  /// Sequences may share a row, as the beams of a text do: its keys are then read once for all of
  /// them. By default, sequence n has row n.
  ///
  /// @code
  /// auto step = cache.append({first, second, fork_of_first}, {1, 1, 1});
  /// auto inputs = heed::TransformerInputs().projected_memory(projected);  // of two sources
  /// auto scores = decoder->forward_cached(tokens, step.memory_rows({0, 1, 0}), false, inputs);
  /// @endcode
  ///
  /// Throws c10::ValueError when there are not N rows, or when one is below 0.
  PagedStep& memory_rows(at::IntArrayRef rows);

  /// Writes key [T, G, D] and value [T, G, Dv] of a layer, in the cache's device and dtype; any
  /// floating dtype for int8.
  /// Throws c10::ValueError when a shape, dtype, device or layer is invalid, when the cache has
  /// changed since `append`, and when a gradient would be lost.
  void write(const at::Tensor& key, const at::Tensor& value, int64_t layer = 0);

  /// The pool of a layer: [P, G, page, D] and [P, G, page, Dv].
  /// @{
  at::Tensor key_pages(int64_t layer = 0) const;
  at::Tensor value_pages(int64_t layer = 0) const;
  /// @}

  /// The scales of int8 keys and values, for AttendOptions: [P, G, page]; undefined otherwise.
  /// Values that are a part of the keys have those of the keys.
  /// @{
  at::Tensor key_scales(int64_t layer = 0) const;
  at::Tensor value_scales(int64_t layer = 0) const;
  /// @}

  /// The options of the cache.
  const PagedKVCacheOptions& options() const;

 private:
  friend class PagedKVCache;
  friend class detail::TokensOfStep;
  template <typename Derived, typename Options>
  friend class MultiHeadAttentionImplBase;
  friend HEED_API at::Tensor attend_paged(const at::Tensor& query, const PagedStep& step,
                                          int64_t layer, const AttendOptions& options);
  HEED_LOCAL PagedStep(std::shared_ptr<PagedKVCache::State> state,
                       const PagedKVCache::Growth& growth, at::IntArrayRef parents);
  HEED_LOCAL size_t check(const char* function, int64_t layer) const;
  HEED_LOCAL void rotate_for(const char* function, int64_t border);
  HEED_LOCAL const detail::MemoryRows& rows_of(const char* function, int64_t size);

  std::shared_ptr<PagedKVCache::State> state_;
  int64_t change_;  // the cache's number of changes while the step may be used
  int64_t tokens_ = 0;
  at::Tensor query_offsets_, key_lengths_, page_table_, positions_, parents_;
  at::Tensor token_pages_,
      token_slots_;  // int64 [T], on the cache's device: where they are written
  // All layers share the sequences, as `attend_paged` reads them, and the tokens' angles.
  std::shared_ptr<const detail::PagedCall> call_;
  std::shared_ptr<detail::StepAngles> angles_;
  std::optional<std::vector<int64_t>> given_rows_;         // of a memory, for each sequence
  std::shared_ptr<const detail::MemoryRows> memory_rows_;  // made for the first layer
};

/// Lets query [T, H, D] attend causally to the keys of its sequences: `attend_paged` with what the
/// step knows, after `PagedStep::write`. Returns [T, H, Dv].
/// Throws c10::ValueError as `attend_paged` does, and when the cache has changed.
HEED_API at::Tensor attend_paged(const at::Tensor& query, const PagedStep& step, int64_t layer = 0,
                                 const AttendOptions& options = {});

}  // namespace heed
