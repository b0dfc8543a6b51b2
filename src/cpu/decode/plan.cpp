// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/decode/plan.h"

#include <algorithm>
#include <utility>

#include "core/block_mask.h"
#include "core/ceil_div.h"
#include "core/dtypes.h"
#include "cpu/capability.h"
#include "cpu/shown_keys.h"

// How decoding splits a problem:
//
//   row strips  the H / G * L query rows of a group, in strips of 8, 4, 2 and 1 rows
//   columns     the keys of a sequence, for one group or for all that lie side by side in memory;
//               blocks of hidden keys at both ends are left out
//   splits      ranges of equally many keys of all columns (splits.cpp)
//   blocks      up to 64 keys of a split, fewer if their keys and values take more than 256 KiB
//
//   [B, G, S, D]   token 0 of group 0, token 1 of group 0, ..      a column for each group
//   [B, S, G, D]   token 0 of groups 0, 1, .., token 1 of ..       one column for all groups
//
// Nothing here depends on the number of threads. docs/kernels.md, Decode ("Loop").

namespace heed::detail {

namespace {

constexpr int64_t kBlockBytes = 1 << 18;  // of keys and values: two blocks stay in a core's cache

/// A mask or bias expanded to [n, H, L, S] without a copy, or undefined. n is B, unless the batches
/// of a call share n < B of them.
at::Tensor expand(const Problem& problem, const at::Tensor& scores) {
  if (!scores.defined()) return {};
  const auto batches = scores.size(0) == 1 ? problem.batch() : scores.size(0);
  return scores.expand({batches, problem.heads(), problem.query_length(), problem.key_length()});
}

/// Numbers of each query [B, L] or each key [B, S], with contiguous rows, or undefined.
at::Tensor expand_rows(const Problem& problem, const at::Tensor& numbers) {
  return numbers.defined() ? numbers.contiguous().expand({problem.batch(), -1}) : at::Tensor();
}

/// Documents as int64 [B, L] of queries or [B, S] of keys, or undefined.
at::Tensor expand_ids(const Problem& problem, const at::Tensor& ids) {
  return expand_rows(problem, ids.defined() ? ids.to(at::kLong) : ids);
}

/// Cuts a group's H / G * L rows into strips. If 3 rows would be left of strips of 4, an idle row
/// is added: one strip of 4 is cheaper than strips of 2 and 1.
std::vector<int64_t> row_strips(int64_t rows) {
  std::vector<int64_t> strips;
  if (rows % 4 == 3) ++rows;
  while (rows > 0) {
    auto strip = instruction_set().decode.max_rows;
    while (strip > rows) strip /= 2;
    strips.push_back(strip);
    rows -= strip;
  }
  return strips;
}

/// The floats of a row of `columns`, with the padding for kernels.
int64_t row_floats(int64_t columns) { return round_up(columns, kDecodeRowMultiple); }

/// The kernels for a problem whose dtype `decodes`.
const DecodeKernelsOf& kernels_of(const Problem& problem) {
  if (problem.is_quantized()) return instruction_set().decode.of_int8;
  return *decode_kernels(problem.query.scalar_type());
}

/// The query as the kernels read it: with contiguous rows, and in float32 if keys are quantized.
at::Tensor readable_query(const Problem& problem) {
  const auto query = problem.is_quantized() ? problem.query.to(at::kFloat) : problem.query;
  return query.stride(3) == 1 ? query : query.contiguous();
}

}  // namespace

const DecodeKernelsOf* decode_kernels(at::ScalarType dtype) {
  const auto type = element_type(dtype);
  if (!type) return nullptr;
  const auto& kernels = instruction_set().decode.of[static_cast<size_t>(*type)];
  return kernels.attend == nullptr ? nullptr : &kernels;
}

DecodePlan::DecodePlan(const Problem& p)
    : problem(p),
      query(readable_query(p)),
      mask(expand(p, p.mask)),
      documents(expand_ids(p, p.documents)),
      key_documents(expand_ids(p, p.key_documents)),
      bias(expand(p, p.bias.defined() ? p.bias.to(at::kFloat) : p.bias)),
      sinks(p.sinks.defined() ? p.sinks.contiguous() : p.sinks),
      global_rows(expand_rows(p, p.global_rows)),
      global_keys(expand_rows(p, p.global_keys)),
      relative_rows(expand_rows(p, p.relative_rows)),
      relative_keys(expand_rows(p, p.relative_keys)),
      kernels(kernels_of(p)),
      rows(p.heads() / p.groups() * p.query_length()),
      strips(row_strips(rows)),
      padded_rows(round_up(rows, 8)),
      query_row(row_floats(p.head_dim())),
      output_row(row_floats(p.value_head_dim())),
      // If the groups of a token lie side by side in memory, they are read together.
      column_groups(p.key.stride(1) < p.key.stride(2) ? p.groups() : 1),
      splits(make_splits()) {
  const auto key_bytes = column_groups * (p.head_dim() + p.value_head_dim()) * p.key.element_size();
  block_keys =
      std::clamp(kBlockBytes / key_bytes / kDecodeCell * kDecodeCell, kDecodeCell, kDecodeBlock);
}

bool DecodePlan::heads_differ() const {
  return (mask.defined() && mask.stride(1) != 0) ||
         (problem.block_mask && problem.block_mask->sizes()[1] > 1);
}

bool DecodePlan::may_hide(int64_t b, KeyRange block) const {
  const auto first = problem.visible_keys(b, 0);
  const auto last = problem.visible_keys(b, problem.query_length() - 1);
  return mask.defined() || problem.block_mask || documents.defined() || has_global() ||
         last.first > block.first || std::min(first.last, last.last) < block.last;
}

int64_t DecodePlan::block_of(KeyRange keys) const {
  auto count = keys.last - keys.first;
  if (problem.paged()) {
    const auto page_size = problem.key.size(2);
    count = std::min(count, page_size - keys.first % page_size);
  }
  if (count >= block_keys) return block_keys;
  return count < kDecodeCell ? count : count / kDecodeCell * kDecodeCell;
}

uint64_t DecodePlan::seen_keys(int64_t b, int64_t h, int64_t i, KeyRange keys) const {
  const auto range = both(problem.visible_keys(b, i), keys);
  if (range.empty()) return 0;
  auto seen = first_bits(range.last - range.first) << (range.first - keys.first);
  const auto shown = [&](const bool* from, int64_t stride) {
    return instruction_set().scores.shown_keys(from + keys.first * stride, stride,
                                               keys.last - keys.first);
  };
  if (mask.defined()) {
    seen &= shown(row_address<bool>(mask, problem.score_batch(mask, b), h, i), mask.stride(3));
  }
  if (has_global() && !global_rows.const_data_ptr<bool>()[b * global_rows.stride(0) + i]) {
    const auto window = problem.window_at(problem.position(b, i), problem.key_count(b));
    seen &= bits_between(window.first, window.last, keys.first) |
            shown(global_keys.const_data_ptr<bool>() + b * global_keys.stride(0), 1);
  }
  if (problem.block_mask) {
    seen &= problem.block_mask->bits().keys(b, h, i, keys.first, keys.last - keys.first);
  }
  if (!documents.defined()) return seen;
  const auto at = [b](const at::Tensor& ids, int64_t n) {
    return ids.const_data_ptr<int64_t>()[b * ids.stride(0) + n];
  };
  const auto document = at(documents, i);
  for (auto key = range.first; key < range.last; ++key) {
    const bool same = at(key_documents, key) == document;
    seen &= ~(uint64_t{!same} << (key - keys.first));
  }
  return seen;
}

Splits DecodePlan::make_splits() const {
  const auto differ = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.size(0) > 1 && tensor.stride(0) != 0;
  };
  const bool has_block_masks = problem.block_mask && problem.block_mask->sizes()[0] > 1;
  const bool same = !problem.padded() && !differ(mask) && !differ(documents) &&
                    !differ(key_documents) && !differ(global_rows) && !differ(global_keys) &&
                    !has_block_masks;
  std::vector<KeyRange> keys(static_cast<size_t>(same ? 1 : problem.batch()));
  for (size_t b = 0; b < keys.size(); ++b) keys[b] = keys_of(static_cast<int64_t>(b));
  constexpr int64_t kReading = 2;  // reading keys and values costs as much as the products
  const auto key_cost =
      kReading * column_groups * rows * (problem.head_dim() + problem.value_head_dim());
  return {std::move(keys), columns_per_sequence() * (same ? problem.batch() : 1), key_cost};
}

KeyRange DecodePlan::keys_of(int64_t b) const {
  auto keys = problem.visible_keys(b, 0, problem.query_length());
  const bool looks = mask.defined() || problem.block_mask || documents.defined() || has_global();
  while (looks && !keys.empty()) {
    const KeyRange block{keys.first, std::min(keys.first + kDecodeBlock, keys.last)};
    if (are_seen(b, block)) break;
    keys.first = block.last;
  }
  while (looks && !keys.empty()) {
    const KeyRange block{std::max(keys.last - kDecodeBlock, keys.first), keys.last};
    if (are_seen(b, block)) break;
    keys.last = block.first;
  }
  return keys.empty() ? KeyRange{0, 0} : keys;
}

bool DecodePlan::are_seen(int64_t b, KeyRange block) const {
  const auto heads = heads_differ() ? problem.heads() : 1;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < problem.query_length(); ++i) {
      if (seen_keys(b, h, i, block) != 0) return true;
    }
  }
  return false;
}

}  // namespace heed::detail
