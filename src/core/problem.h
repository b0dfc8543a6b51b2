#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace heed::detail {

/// Keys [first, last).
struct KeyRange {
  int64_t first, last;
  bool empty() const { return first >= last; }
};

/// The keys that are in both.
inline KeyRange both(KeyRange a, KeyRange b) {
  return {std::max(a.first, b.first), std::min(a.last, b.last)};
}

/// The results that a call of `attend` returns.
enum class Wanted { output, output_and_weights, output_and_lse };

/// The place of a call in a larger one, of whose queries, keys and heads it has a part. Its results
/// are float32, or float64 for float64 tensors: the parts are joined before they are rounded.
struct Part {
  int64_t first_query = 0, first_key = 0, first_head = 0;
  int64_t query_length = 0, key_length = 0, heads = 0;  // of the whole
  uint64_t dropout_key = 0;                             // the same in all parts
  bool for_backward = false;  // whether gradients of the part follow, from the same weights
};

/// Sequences one after the other in a call of batch 1: queries see keys of their own sequence, with
/// causal and window as in a call of that sequence alone. On CUDA only.
struct PackedSequences {
  at::Tensor query_offsets, key_offsets;  // int32 [N + 1]; for kernels of LibTorch
  at::Tensor key_lengths;  // int32 [N]: how many keys are used; undefined: all between the offsets
  int64_t longest_query = 0, longest_key = 0;
  // What is known of the numbers on the device:
  bool same_offsets = false;    // of queries and keys
  bool enough_keys = false;     // no sequence has fewer keys than queries
  bool single_queries = false;  // each sequence has one query
};

/// Sequences of which only the first queries and keys exist. The last query stands at the last key.
struct PaddedSequences {
  at::Tensor query_lengths;  // int64 [B], contiguous, or undefined: all of them
  at::Tensor key_lengths;    // int64 [B], contiguous, not below query_lengths
};

/// Pages have room for a multiple of so many keys, as kernels take them at a time.
inline constexpr int64_t kPageMultiple = 16;

/// Keys and values [P, G, page, D] and [P, G, page, Dv] in pages of a pool, for padded sequences.
struct PagedKeys {
  at::Tensor table;     // int64 [B, n], contiguous: each sequence's pages in their order
  int64_t longest = 0;  // keys of the longest sequence
  /// How many pages the longest sequence has.
  int64_t used(int64_t page_size) const { return (longest + page_size - 1) / page_size; }
  /// Page n of sequence b. On the CPU.
  int64_t page(int64_t b, int64_t n) const {
    return table.const_data_ptr<int64_t>()[b * table.size(1) + n];
  }
};

/// A checked call of `attend`, in the form that all paths read.
struct Problem {
  at::Tensor query;  // [B, H, L, D]
  at::Tensor key;    // [B, G, S, D], or pages
  at::Tensor value;  // [B, G, S, Dv], or pages
  at::Tensor mask;   // bool [B or 1, H or 1, L or 1, S], or undefined
  at::Tensor bias;   // floating, shaped as mask, or undefined
  bool causal = false;
  std::optional<int64_t> window;
  double dropout = 0.0;
  double scale = 1.0;
  double softcap = 0.0;                 // 0: none
  at::Tensor alibi_slopes;              // [H] in the dtype computed in, or undefined
  at::Tensor sinks;                     // [H] in the dtype computed in, or undefined
  at::Tensor documents, key_documents;  // integer [B or 1, L] and [B or 1, S], or undefined
  at::Tensor positions;  // int64 [B or 1, L]: if defined, of the queries instead of `position`
  // If defined, keys and values are int8: float32 [B, G, S], or of pages.
  at::Tensor key_scales, value_scales;
  Wanted wanted = Wanted::output;
  std::optional<Part> part;  // or the call is whole
  std::optional<PackedSequences> packed;
  std::optional<PaddedSequences> padded;
  std::optional<PagedKeys> pages;

  bool is_quantized() const { return key_scales.defined(); }
  /// Whether heed's kernels can read keys and values as they are if they are int8.
  bool has_rows_of_int8() const {
    return key.stride(3) == 1 && value.stride(3) == 1 && key_scales.stride(2) == 1 &&
           value_scales.stride(2) == 1;
  }
  int64_t batch() const { return query.size(0); }
  int64_t heads() const { return query.size(1); }
  int64_t groups() const { return key.size(1); }
  int64_t query_length() const { return query.size(2); }
  int64_t key_length() const { return pages ? pages->longest : key.size(2); }
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
    return mask.defined() || causal || window || documents.defined() || packed || padded;
  }
  /// How many queries sequence b has. On the CPU.
  int64_t query_count(int64_t b) const {
    return padded && padded->query_lengths.defined()
               ? padded->query_lengths.const_data_ptr<int64_t>()[b]
               : query_length();
  }
  /// How many keys sequence b has. On the CPU.
  int64_t key_count(int64_t b) const {
    return padded ? padded->key_lengths.const_data_ptr<int64_t>()[b] : key_length();
  }
  /// Position of query i among the keys, where sequences are not padded.
  int64_t position(int64_t query_index) const {
    if (!part) return query_index + key_length() - query_length();
    return query_index + part->first_query + part->key_length - part->query_length -
           part->first_key;
  }
  /// The same in sequence b, whose length may be its own. On the CPU.
  int64_t position(int64_t b, int64_t query_index) const;
  at::ScalarType result_dtype() const;
  /// The keys that query i of sequence b sees according to causal, window and lengths. On the CPU.
  KeyRange visible_keys(int64_t b, int64_t query_index) const;
  /// Those that any of its queries [first, last) sees: no key lies between theirs.
  KeyRange visible_keys(int64_t b, int64_t first, int64_t last) const;
  /// What query i sees according to causal and window alone.
  KeyRange visible_keys(int64_t query_index) const;
  /// The same of a query at this position, of `key_count` keys.
  KeyRange keys_near(int64_t position, int64_t key_count) const {
    KeyRange range{0, key_count};
    if (window) range = {position - *window + 1, position + *window};
    if (causal) range.last = position + 1;
    return {std::clamp<int64_t>(range.first, 0, key_count),
            std::clamp<int64_t>(range.last, 0, key_count)};
  }
};

/// The tensors of a Problem; the first `kGradientTensors` may carry gradients.
inline constexpr at::Tensor Problem::*kProblemTensors[] = {
    &Problem::query,         &Problem::key,       &Problem::value,        &Problem::bias,
    &Problem::sinks,         &Problem::mask,      &Problem::alibi_slopes, &Problem::documents,
    &Problem::key_documents, &Problem::positions, &Problem::key_scales,   &Problem::value_scales};
inline constexpr size_t kGradientTensors = 5;

/// Which gradients are computed; the others are undefined.
using WantedGradients = std::array<bool, kGradientTensors>;

/// Which queries are of the document of which keys: bool [B or 1, 1, L, S], from [B or 1, L] and
/// [B or 1, S].
at::Tensor same_document(const at::Tensor& documents, const at::Tensor& key_documents);

/// Lets the last queries of N sequences be trees of drafted tokens: `parents` int64 [N, L] on the
/// CPU, for key_lengths[n] keys each.
void set_draft(Problem& problem, const at::Tensor& parents, at::IntArrayRef key_lengths);

/// Checks the arguments and drops options without effect. Errors begin with `function`.
Problem make_problem(const char* function, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const AttendOptions& options,
                     Wanted wanted = Wanted::output, const std::optional<Part>& part = {});

/// The same for arguments that are checked: queries [B, H, L, D], and keys and values in pages.
Problem make_paged_problem(const at::Tensor& query, const at::Tensor& key_pages,
                           const at::Tensor& value_pages, PagedKeys pages,
                           PaddedSequences sequences, const AttendOptions& options);

}  // namespace heed::detail
