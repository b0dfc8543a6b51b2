// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/cuda/kernel_form.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "attend/score_mask.h"
#include "attend/sequences.h"
#include "core/ceil_div.h"

namespace heed::detail {

namespace {

constexpr int64_t kAlignedBytes = 16;  // kernels read 16 bytes at a time

int64_t aligned_elements(const at::Tensor& tensor) { return kAlignedBytes / tensor.element_size(); }

/// Whether kernels can read the tensor: the last dimension has stride 1, and memory and all rows
/// start at multiples of kAlignedBytes.
bool is_aligned(const at::Tensor& tensor) {
  const auto elements = aligned_elements(tensor);
  bool aligned = tensor.stride(-1) == 1 && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) %
                                                   static_cast<size_t>(kAlignedBytes) ==
                                               0;
  for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
    aligned = aligned && (tensor.size(dim) == 1 || tensor.stride(dim) % elements == 0);
  }
  return aligned;
}

/// Copies [B, H, L, D] to memory in the order of [B, L, H, D].
at::Tensor copied_rows(const at::Tensor& tensor) {
  return tensor.transpose(1, 2).clone(at::MemoryFormat::Contiguous).transpose(1, 2);
}

at::Tensor with_head_dim(const at::Tensor& tensor, int64_t head_dim) {
  const auto missing = head_dim - tensor.size(3);
  if (missing == 0) return is_aligned(tensor) ? tensor : copied_rows(tensor);
  return at::constant_pad_nd(tensor.transpose(1, 2), {0, missing}).transpose(1, 2);
}

/// A batch [B, G, S, D] as rows of one sequence [1, G, rows, D]. The rows of batch b begin at row
/// b * apart.
struct RowsOfBatch {
  at::Tensor rows;
  int64_t apart;
};

RowsOfBatch rows_of_batch(const at::Tensor& tensor) {
  const auto given = is_aligned(tensor) ? tensor : copied_rows(tensor);
  const bool is_view = given.stride(2) > 0 && given.stride(0) % given.stride(2) == 0 &&
                       given.stride(0) / given.stride(2) >= given.size(2);
  const auto rows = is_view ? given : copied_rows(given);
  const auto apart = rows.size(0) == 1 ? rows.size(2) : rows.stride(0) / rows.stride(2);
  const auto total = (rows.size(0) - 1) * apart + rows.size(2);
  return {rows.as_strided({1, rows.size(1), total, rows.size(3)},
                          {total * rows.stride(2), rows.stride(1), rows.stride(2), 1}),
          apart};
}

/// Interleaves two vectors: first[0], second[0], first[1], ... as int32 [2 * N].
at::Tensor in_turn(const at::Tensor& first, const at::Tensor& second) {
  return at::stack({first, second}, 1).flatten().to(at::kInt);
}

}  // namespace

KernelForm::KernelForm(Kernel kernel, const Problem& problem) : given_(problem), own_(problem) {
  own_.mask = with_block_mask(own_.mask, own_, {0, own_.query_length()}, {0, own_.key_length()});
  own_.block_mask.reset();
  if (own_.documents.defined()) {
    auto sorted = sort_documents(own_);
    own_ = std::move(sorted.problem);
    order_ = sorted.order;
  }
  if (kernel == Kernel::efficient) {
    drop_blind_queries();
    if (own_.left_window && own_.needs_grad()) add_queries(*own_.left_window);
    group_queries();
    repeat_keys();
  }
  if (own_.padded()) pack_padded(*own_.padded());
  if (own_.has_scores()) merge_scores();
  align(kernel);
}

/// Removes the first queries of a causal call if there are more queries than keys. They see no
/// key, and the kernel cannot place a query before the first key.
void KernelForm::drop_blind_queries() {
  const bool may = own_.causal && !own_.has_lengths();
  blind_queries_ = may ? std::max<int64_t>(own_.query_length() - own_.key_length(), 0) : 0;
  if (blind_queries_ == 0) return;
  const auto seeing = own_.key_length();
  own_.query = own_.query.narrow(2, blind_queries_, seeing);
  if (seeing == 1) {  // the only query sees the only key
    own_.causal = false;
    own_.left_window.reset();
  }
  for (auto* scores : {&own_.mask, &own_.bias}) {
    if (scores->defined() && scores->size(2) > 1) {
      *scores = scores->narrow(2, blind_queries_, seeing);
    }
  }
}

/// Makes queries and keys equally many, because before LibTorch 2.15 the gradients of a window are
/// right only then. Keys that no query sees are left out, and queries of zeros are put before the
/// others.
void KernelForm::add_queries(int64_t left_window) {
  if (own_.packed() || own_.key_length() <= own_.query_length()) return;
  const auto keys = std::min(own_.key_length(), own_.query_length() + left_window);
  own_.key = own_.key.narrow(2, own_.key_length() - keys, keys);
  own_.value = own_.value.narrow(2, own_.value.size(2) - keys, keys);
  added_queries_ = keys - own_.query_length();
  own_.query = at::constant_pad_nd(own_.query, {0, 0, added_queries_, 0});
}

/// Makes padded sequences packed ones, in a call without gradients. If sequences have fewer than L
/// queries, each becomes two sequences: its queries, then its padding, which sees no key.
void KernelForm::pack_padded(const PaddedSequences& padded) {
  const auto& [query_lengths, key_lengths, enough_keys] = padded;
  const auto length = own_.query_length();
  auto keys = rows_of_batch(own_.key), values = rows_of_batch(own_.value);
  if (keys.apart != values.apart) {
    keys = rows_of_batch(copied_rows(own_.key));
    values = rows_of_batch(copied_rows(own_.value));
  }
  PackedSequences packed;
  packed.longest_query = length;
  packed.longest_key = own_.key_length();
  packed.enough_keys = enough_keys;
  const auto batch = at::arange(own_.batch() + 1, key_lengths.options());
  const auto starts = batch * length, key_starts = batch * keys.apart;
  if (query_lengths.defined()) {
    const auto last = batch.narrow(0, 0, own_.batch());
    const auto ends = starts.narrow(0, 0, own_.batch()) + query_lengths;
    const auto begins = key_starts.narrow(0, 0, own_.batch());
    packed.query_offsets =
        at::constant_pad_nd(in_turn(ends, starts.narrow(0, 1, own_.batch())), {1, 0});
    packed.key_offsets =
        at::constant_pad_nd(in_turn(begins, begins), {0, 1}, own_.batch() * keys.apart);
    packed.key_lengths = in_turn(key_lengths, at::zeros_like(last));
  } else {
    packed.single_queries = length == 1;
    packed.query_offsets = starts.to(at::kInt);
    packed.key_offsets = key_starts.to(at::kInt);
    packed.key_lengths = key_lengths.to(at::kInt);
  }
  own_.query = own_.query.transpose(1, 2).flatten(0, 1).transpose(0, 1).unsqueeze(0);
  own_.key = keys.rows;
  own_.value = values.rows;
  own_.sequences = std::move(packed);
}

/// If there is one query and its heads see the same keys, makes the query heads of a group queries
/// of one head, so that keys and values are read once for the group.
void KernelForm::group_queries() {
  const auto per_group = own_.heads() / own_.groups();
  const bool same_scores = (!own_.mask.defined() || own_.mask.size(1) == 1) &&
                           (!own_.bias.defined() || own_.bias.size(1) == 1);
  grouped_ = per_group > 1 && own_.query_length() == 1 && !own_.packed() && same_scores &&
             !own_.sinks.defined() && !(own_.padded() && own_.padded()->query_lengths.defined());
  if (!grouped_) return;
  own_.query = own_.query.reshape({own_.batch(), own_.groups(), per_group, own_.head_dim()});
}

/// Repeats keys and values, because the kernel takes as many key heads as query heads.
void KernelForm::repeat_keys() {
  const auto times = own_.heads() / own_.groups();
  if (times == 1) return;
  for (auto* tensor : {&own_.key, &own_.value}) {
    const auto rows = tensor->transpose(1, 2).unsqueeze(3);  // [B, S, G, 1, D]
    *tensor = rows.expand({-1, -1, -1, times, -1}).flatten(2, 3).transpose(1, 2);
  }
}

/// Merges mask and bias in one bias [B, H, L, S] of the query's dtype, with aligned rows.
void KernelForm::merge_scores() {
  const auto dtype = own_.query.scalar_type();
  auto scores = own_.bias;
  if (own_.mask.defined()) {
    const auto hidden = own_.mask.bitwise_not();
    scores =
        scores.defined()
            ? scores.masked_fill(hidden, kHiddenScore)
            : at::zeros(own_.mask.sizes(), own_.query.options()).masked_fill_(hidden, kHiddenScore);
  }
  scores = scores.to(dtype);
  const auto keys = own_.key_length();
  const auto missing = round_up(keys, aligned_elements(scores)) - keys;
  if (missing > 0 || !is_aligned(scores)) {
    scores = at::constant_pad_nd(scores, {0, missing});
    scores = (missing > 0 ? scores : scores.clone(at::MemoryFormat::Contiguous)).narrow(3, 0, keys);
  }
  own_.bias = scores.expand({own_.batch(), own_.heads(), own_.query_length(), keys});
  own_.mask = at::Tensor();
}

void KernelForm::align(Kernel kernel) {
  const auto step = kernel == Kernel::flash ? 8 : aligned_elements(own_.query);
  auto head_dim = round_up(own_.head_dim(), step);
  auto value_head_dim = round_up(own_.value_head_dim(), step);
  if (kernel == Kernel::flash) head_dim = value_head_dim = std::max(head_dim, value_head_dim);
  own_.query = with_head_dim(own_.query, head_dim);
  own_.key = with_head_dim(own_.key, head_dim);
  own_.value = with_head_dim(own_.value, value_head_dim);
}

/// The lse of queries without keys, [1, H or 1, 1]: the sinks, or -inf.
at::Tensor KernelForm::lse_without_keys(const at::Tensor& like) const {
  return given_.sinks.defined() ? given_.sinks.view({1, -1, 1})
                                : at::full({1, 1, 1}, kHiddenScore, like.options());
}

Attended KernelForm::original(const Attended& attended) const {
  auto output = attended.output.narrow(3, 0, given_.value_head_dim());
  auto lse = attended.lse;
  if (added_queries_ > 0) {
    output = output.narrow(2, added_queries_, output.size(2) - added_queries_);
    if (lse.defined()) lse = lse.narrow(2, added_queries_, lse.size(2) - added_queries_);
  }
  const auto batch = given_.batch(), heads = given_.heads(), length = given_.query_length();
  if (given_.padded()) {  // the output is [1, H, B * L, Dv], and the lse [1, H, B * L]
    const auto in_batch = [&](const at::Tensor& packed) {
      const auto rows = packed.squeeze(0).transpose(0, 1);
      return rows.unflatten(0, {batch, own_.query_length() / batch}).transpose(1, 2);
    };
    output = in_batch(output);
    if (lse.defined()) lse = in_batch(lse);
    if (const auto& lengths = given_.padded()->query_lengths; lengths.defined()) {
      const auto place = at::arange(length, lengths.options());
      const auto missing = place.unsqueeze(0).ge(lengths.unsqueeze(1)).unsqueeze(1);  // [B, 1, L]
      output = output.masked_fill(missing.unsqueeze(3), 0.0);
      if (lse.defined()) lse = at::where(missing, lse_without_keys(lse), lse);
    }
  }
  if (order_.defined()) {
    const auto given_order = [&](const at::Tensor& sorted) {
      const auto rows = sorted.squeeze(0).transpose(0, 1);  // [B * L, H, ...]
      const auto tokens = at::zeros_like(rows).index_copy(0, order_, rows);
      return tokens.unflatten(0, {batch, length}).transpose(1, 2);
    };
    output = given_order(output);
    if (lse.defined()) lse = given_order(lse);
  }
  if (grouped_) {
    output = output.reshape({batch, heads, 1, given_.value_head_dim()});
    if (lse.defined()) lse = lse.reshape({batch, heads, 1});
  }
  if (blind_queries_ > 0) {
    output = at::constant_pad_nd(output, {0, 0, blind_queries_, 0});
    if (lse.defined()) {
      lse = at::cat({lse_without_keys(lse).expand({batch, heads, blind_queries_}), lse}, 2);
    }
  }
  return {output, {}, lse};
}

}  // namespace heed::detail
