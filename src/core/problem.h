// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "core/ceil_div.h"

namespace heed::detail {

/// Keys [first, last).
struct KeyRange {
  int64_t first, last;
  bool empty() const { return first >= last; }
};

/// The intersection of two ranges.
inline KeyRange both(KeyRange a, KeyRange b) {
  return {std::max(a.first, b.first), std::min(a.last, b.last)};
}

/// The results that a call of `attend` returns.
enum class Wanted { output, output_and_weights, output_and_lse };

/// Sequences that all have L queries and S keys, in a call that is whole.
struct PlainSequences {};

/// The place of a call within a larger call on plain sequences, of which it computes some queries,
/// keys and heads. Its results are merged with those of the other parts.
struct Part {
  int64_t first_query = 0, first_key = 0, first_head = 0;
  int64_t query_length = 0, key_length = 0, heads = 0;  // of the larger call
  uint64_t dropout_key = 0;                             // the same in all parts
  bool for_backward = false;  // whether part_gradients follows and needs the same weights
};

/// Sequences one after the other in a call of batch 1. A query sees keys of its own sequence;
/// causal and window apply as in a call of that sequence alone. There are neither mask, bias,
/// documents nor int8 keys. Only for CUDA.
struct PackedSequences {
  at::Tensor query_offsets, key_offsets;  // int32 [N + 1]; for kernels of LibTorch
  at::Tensor key_lengths;  // int32 [N]: keys in use; undefined: all between the offsets
  int64_t longest_query = 0, longest_key = 0;
  // The host may know these facts about the numbers on the device; false if it does not:
  bool same_offsets = false;    // queries and keys have the same offsets
  bool enough_keys = false;     // no sequence has fewer keys than queries
  bool single_queries = false;  // each sequence has one query
  bool has_enough_keys() const { return same_offsets || enough_keys; }
};

/// Sequences that are padded at their end: only their first queries and keys exist. The last query
/// stands at the last key, unless the problem is top_left.
struct PaddedSequences {
  at::Tensor query_lengths;  // int64 [B], contiguous; undefined: all queries exist
  at::Tensor key_lengths;    // int64 [B], contiguous
  bool enough_keys = false;  // whether the host knows that no sequence has fewer keys than queries
};

/// The number of keys in a page is a multiple of this, because kernels read so many at a time.
inline constexpr int64_t kPageMultiple = 16;

/// Padded sequences whose keys and values are [P, G, page, D] and [P, G, page, Dv], in pages of a
/// pool, and all of whose queries exist. They are for inference: there are no gradients, no dropout
/// and no bias.
struct PagedSequences : PaddedSequences {
  at::Tensor table;     // int64 [B, n], contiguous: each sequence's pages in their order
  int64_t longest = 0;  // keys of the longest sequence
  /// How many pages the longest sequence has.
  int64_t used(int64_t page_size) const { return ceil_div(longest, page_size); }
  /// Page n of sequence b. The table must be on the CPU.
  int64_t page(int64_t b, int64_t n) const {
    return table.const_data_ptr<int64_t>()[b * table.size(1) + n];
  }
};

/// A checked call of `attend`, in the form that all paths read.
struct Problem {
  at::Tensor query;  // [B, H, L, D]
  at::Tensor key;    // [B, G, S, D], or pages
  at::Tensor value;  // [B, G, S, Dv], or pages
  at::Tensor mask;   // bool [n, H or 1, L or 1, S], or undefined; n is 1, B, or see score_batch
  at::Tensor bias;   // floating, shaped as mask, or undefined
  MaskBatch mask_batch = MaskBatch::each;  // `each` unless n divides B
  std::optional<BlockMask> block_mask;     // if given, hides a key from some query
  bool causal = false;
  // How many keys before and after its position a query sees; nullopt: all of them
  std::optional<int64_t> left_window, right_window;
  bool top_left = false;  // whether query i is at position i, also if L and S differ
  double dropout = 0.0;
  double scale = 1.0;
  double softcap = 0.0;      // 0: none
  at::Tensor sinks;          // [H] in the dtype of the computation, or undefined
  at::Tensor relative_bias;  // [H, 2 R + 1] in the dtype of the computation, or undefined
  at::Tensor alibi_slopes;   // [B or 1, H] in the dtype of the computation, or undefined
  // int64 [B or 1, L] and [B or 1, S], or undefined: relative positions of queries and keys, if
  // they are not the positions themselves
  at::Tensor relative_rows, relative_keys;
  // bool [B or 1, L] and [B or 1, S], or undefined: queries and keys that windows do not concern
  at::Tensor global_rows, global_keys;
  at::Tensor documents, key_documents;  // integer [B or 1, L] and [B or 1, S], or undefined
  at::Tensor positions;  // int64 [B or 1, L]: positions of queries, or undefined: position()
  // float32 [B, G, S], or [P, G, page] with pages. If defined, keys and values are quantized.
  at::Tensor key_scales, value_scales;
  Wanted wanted = Wanted::output;
  // Whether the results are merged with those of other keys. Those of a Part always are.
  bool merged = false;
  std::variant<PlainSequences, Part, PackedSequences, PaddedSequences, PagedSequences> sequences;

  /// The sequences, or null if they have another form. Those in pages are padded ones too.
  /// @{
  const Part* part() const { return std::get_if<Part>(&sequences); }
  const PackedSequences* packed() const { return std::get_if<PackedSequences>(&sequences); }
  const PaddedSequences* padded() const {
    const auto* own = paged();
    return own ? own : std::get_if<PaddedSequences>(&sequences);
  }
  const PagedSequences* paged() const { return std::get_if<PagedSequences>(&sequences); }
  /// @}
  /// Whether there is a mask, a block mask or a bias, which have an element for each score.
  bool has_scores() const { return mask.defined() || block_mask || bias.defined(); }
  /// Whether each sequence has lengths of its own.
  bool has_lengths() const { return packed() || padded(); }
  /// Whether results are rounded to the dtype of the query. Results that are merged stay float32,
  /// or float64 for float64 tensors, until they have been merged.
  bool rounds() const { return !merged && !part(); }
  bool is_quantized() const { return key_scales.defined(); }
  bool has_window() const { return left_window || right_window; }
  /// The batch of mask or bias, which may have fewer than B, that sequence b has.
  int64_t score_batch(const at::Tensor& scores, int64_t b) const {
    const auto count = scores.size(0);
    if (mask_batch == MaskBatch::repeated) return b / (batch() / count);
    return count == batch() ? b : b % count;
  }
  /// Whether causal or a window hides keys by their distance from a query.
  bool hides_by_distance() const { return causal || has_window(); }
  /// Whether heed's kernels can read quantized keys and values without a copy.
  bool has_quantized_rows() const {
    return key.stride(3) == 1 && value.stride(3) == 1 && key_scales.stride(2) == 1 &&
           value_scales.stride(2) == 1;
  }
  int64_t batch() const { return query.size(0); }
  int64_t heads() const { return query.size(1); }
  int64_t groups() const { return key.size(1); }
  int64_t query_length() const { return query.size(2); }
  int64_t key_length() const { return paged() ? paged()->longest : key.size(2); }
  int64_t head_dim() const { return query.size(3); }
  int64_t value_head_dim() const { return value.size(3); }

  bool is_empty() const {
    return batch() == 0 || query_length() == 0 || key_length() == 0 || value_head_dim() == 0;
  }
  bool needs_grad() const;
  /// Whether a tensor carries a tangent of forward-mode differentiation.
  bool has_tangent() const;
  /// Whether a query may not see all keys.
  bool may_hide() const {
    return mask.defined() || block_mask || hides_by_distance() || documents.defined() ||
           has_lengths();
  }
  /// How many queries sequence b has. Its lengths must be on the CPU.
  int64_t query_count(int64_t b) const {
    const auto* own = padded();
    return own && own->query_lengths.defined() ? own->query_lengths.const_data_ptr<int64_t>()[b]
                                               : query_length();
  }
  /// How many keys sequence b has. Its lengths must be on the CPU.
  int64_t key_count(int64_t b) const {
    return padded() ? padded()->key_lengths.const_data_ptr<int64_t>()[b] : key_length();
  }
  /// The call's place within a larger call, or within itself if it is whole.
  Part place() const {
    return part() ? *part() : Part{0, 0, 0, query_length(), key_length(), heads()};
  }
  /// The position of a query among the keys. Sequences must not be padded.
  int64_t position(int64_t query_index) const {
    const auto own = place();
    const auto behind = top_left ? 0 : own.key_length - own.query_length;
    return query_index + own.first_query - own.first_key + behind;
  }
  /// The position of a query of sequence b, which may be padded. Its lengths must be on the CPU.
  int64_t position(int64_t b, int64_t query_index) const;
  at::ScalarType result_dtype() const;
  /// The keys that a query of sequence b sees by causal, windows and lengths, which must be on the
  /// CPU.
  KeyRange visible_keys(int64_t b, int64_t query_index) const;
  /// The keys that at least one of the queries [first, last) of sequence b sees. They are one
  /// range, because the ranges of neighboring queries leave no gap.
  KeyRange visible_keys(int64_t b, int64_t first, int64_t last) const;
  /// The keys that a query sees by causal and windows alone.
  KeyRange visible_keys(int64_t query_index) const;
  /// The keys out of [0, key_count) that the windows of a query at this position show.
  KeyRange window_at(int64_t position, int64_t key_count) const {
    return clamped({left_window ? position - *left_window : 0,
                    right_window ? position + *right_window + 1 : key_count},
                   key_count);
  }
  /// The keys out of [0, key_count) that a query at this position may see by causal and windows;
  /// by causal alone, if global tokens lift windows.
  KeyRange keys_near(int64_t position, int64_t key_count) const {
    auto range = global_keys.defined() ? KeyRange{0, key_count} : window_at(position, key_count);
    return both(range, clamped({0, causal ? position + 1 : key_count}, key_count));
  }
  static KeyRange clamped(KeyRange range, int64_t key_count) {
    return {std::clamp<int64_t>(range.first, 0, key_count),
            std::clamp<int64_t>(range.last, 0, key_count)};
  }
};

/// The tensors of a Problem; the first `kGradientTensors` may carry gradients.
inline constexpr at::Tensor Problem::*kProblemTensors[] = {
    &Problem::query,         &Problem::key,         &Problem::value,
    &Problem::bias,          &Problem::sinks,       &Problem::relative_bias,
    &Problem::alibi_slopes,  &Problem::mask,        &Problem::documents,
    &Problem::key_documents, &Problem::positions,   &Problem::relative_rows,
    &Problem::relative_keys, &Problem::global_rows, &Problem::global_keys,
    &Problem::key_scales,    &Problem::value_scales};
inline constexpr size_t kGradientTensors = 7;

/// Which gradients are computed, in the order of kProblemTensors; the others are undefined.
using WantedGradients = std::array<bool, kGradientTensors>;

/// Gives a mask or bias rank 4: [L, S] becomes [1, 1, L, S], [B, L, S] becomes [B, 1, L, S].
inline at::Tensor with_head_axis(at::Tensor scores) {
  while (scores.dim() < 4) scores = scores.unsqueeze(scores.dim() == 2 ? 0 : 1);
  return scores;
}

/// Whether a query and a key belong to the same document: bool [B or 1, 1, L, S], from ids
/// [B or 1, L] and [B or 1, S].
at::Tensor same_document(const at::Tensor& documents, const at::Tensor& key_documents);

/// Makes the queries of N sequences trees of drafted tokens. `parents` is int64 [N, L] on the CPU;
/// sequence n has key_lengths[n] keys.
void set_draft(Problem& problem, const at::Tensor& parents, at::IntArrayRef key_lengths);

/// Makes a problem of the arguments of `attend`: checks them and drops options that have no
/// effect. Errors begin with `function`.
Problem make_problem(const char* function, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const AttendOptions& options,
                     Wanted wanted = Wanted::output, const std::optional<Part>& part = {});

/// Makes a problem with keys and values in pages; query is [B, H, L, D]. The arguments must have
/// been checked.
Problem make_paged_problem(const at::Tensor& query, const at::Tensor& key_pages,
                           const at::Tensor& value_pages, PagedSequences sequences,
                           const AttendOptions& options);

}  // namespace heed::detail
