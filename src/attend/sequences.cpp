// SPDX-License-Identifier: BSD-3-Clause
#include "attend/sequences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <optional>

namespace heed::detail {

namespace {

/// The numbers [0, count), int64 on the problem's device.
at::Tensor numbers(const Problem& problem, int64_t count) {
  return at::arange(count, problem.query.options().dtype(at::kLong));
}

Problem with_packed_documents(Problem problem, const PackedSequences& packed) {
  TORCH_INTERNAL_ASSERT(!packed.key_lengths.defined());
  const auto count = packed.query_offsets.size(0) - 1;
  const auto queries = sequence_of_tokens(packed.query_offsets, problem.query_length());
  const auto keys = sequence_of_tokens(packed.key_offsets, problem.key_length());
  problem.documents = queries.unsqueeze(0);
  // Keys beyond the last offset get -1, a document that no query has.
  problem.key_documents = keys.masked_fill(keys.eq(count), -1).unsqueeze(0);
  // The last query of a sequence stands at its last key, or the first at its first.
  const auto apart = packed.key_offsets.to(at::kLong) - packed.query_offsets.to(at::kLong);
  const auto ends = (problem.top_left ? queries : queries + 1).clamp_max(count);
  problem.positions =
      (numbers(problem, problem.query_length()) + apart.index_select(0, ends)).unsqueeze(0);
  problem.sequences = PlainSequences{};
  return problem;
}

/// Gathers each sequence's pages from a pool [P, G, page, ..]: [B, G, S, ..].
at::Tensor gather_pages(const at::Tensor& pool, const PagedSequences& sequences) {
  const auto batch = sequences.table.size(0), used = sequences.used(pool.size(2));
  // The table may hold any numbers after a sequence's last page.
  const auto table = sequences.table.narrow(1, 0, used).clamp(0, pool.size(0) - 1);
  const auto gathered = pool.index_select(0, table.flatten()).unflatten(0, {batch, used});
  return gathered.transpose(1, 2).flatten(2, 3).narrow(2, 0, sequences.longest);
}

Problem with_padded_documents(Problem problem, const PaddedSequences& padded) {
  const auto queries = numbers(problem, problem.query_length()).unsqueeze(0);
  const auto keys = numbers(problem, problem.key_length()).unsqueeze(0);
  const auto key_lengths = padded.key_lengths.unsqueeze(1);
  const auto query_lengths = padded.query_lengths.defined()
                                 ? padded.query_lengths.unsqueeze(1)
                                 : at::full_like(key_lengths, problem.query_length());
  problem.positions = problem.top_left ? queries : queries + key_lengths - query_lengths;
  const auto query_exists = queries.lt(query_lengths), key_exists = keys.lt(key_lengths);
  if (problem.documents.defined()) {
    // Padding gets two documents that no token has. The number 0 is one more, because there may be
    // no tokens. Only operators are used that meta tensors have.
    const auto documents = problem.documents.to(at::kLong);
    const auto key_documents = problem.key_documents.to(at::kLong);
    const auto least =
        at::cat({documents.flatten(), key_documents.flatten(), at::zeros({1}, documents.options())})
            .amin(0);
    const auto or_padding = [](const at::Tensor& ids, const at::Tensor& exist,
                               const at::Tensor& padding) {
      return ids * exist + padding * exist.eq(0);
    };
    problem.documents = or_padding(documents, query_exists, least - 1);
    problem.key_documents = or_padding(key_documents, key_exists, least - 2);
  } else {
    problem.documents = query_exists.to(at::kLong) * 2 - 1;  // 1, or -1 for padding
    problem.key_documents = key_exists.to(at::kLong);        // 1, or 0 for padding
  }
  problem.sequences = PlainSequences{};
  return problem;
}

/// Packs the tokens of a batch [B, H, L, D] in this order: [1, H, B * L, D].
at::Tensor packed_rows(const at::Tensor& tensor, const at::Tensor& order) {
  return tensor.transpose(1, 2).flatten(0, 1).index_select(0, order).transpose(0, 1).unsqueeze(0);
}

}  // namespace

at::Tensor sequence_of_tokens(const at::Tensor& offsets, int64_t count) {
  const auto tokens = at::arange(count, offsets.options());
  return at::searchsorted(offsets, tokens, /*out_int32=*/false, /*right=*/true) - 1;
}

Problem without_pages(Problem problem) {
  const auto* paged = problem.paged();
  if (!paged) return problem;
  const auto keys = numbers(problem, problem.key_length()).unsqueeze(0);
  const auto beyond = keys.ge(paged->key_lengths.unsqueeze(1)).unsqueeze(1);  // [B, 1, S]
  for (auto* tensor : {&problem.key, &problem.value, &problem.key_scales, &problem.value_scales}) {
    if (!tensor->defined()) continue;
    const bool has_columns = tensor->dim() == 4;
    // Memory behind the last key may hold NaN, and LibTorch's kernels multiply it by 0.
    *tensor =
        gather_pages(*tensor, *paged).masked_fill_(has_columns ? beyond.unsqueeze(3) : beyond, 0.0);
  }
  problem.sequences = PaddedSequences{*paged};
  return problem;
}

Problem with_documents(const Problem& problem) {
  if (problem.packed()) return with_packed_documents(problem, *problem.packed());
  if (problem.padded()) return with_padded_documents(without_pages(problem), *problem.padded());
  return problem;
}

SortedDocuments sort_documents(const Problem& problem) {
  const auto batch = problem.batch(), length = problem.query_length();
  const std::optional<bool> stable = true;  // bool alone would be another overload's dim
  const auto [ids, places] = at::sort(problem.documents.expand({batch, length}), stable, /*dim=*/1);
  const auto order = (places + numbers(problem, batch).unsqueeze(1) * length).flatten();
  const auto begins = at::cat({at::ones({batch, 1}, ids.options().dtype(at::kBool)),
                               ids.narrow(1, 1, length - 1).ne(ids.narrow(1, 0, length - 1))},
                              1);
  const auto document = begins.flatten().cumsum(0) - 1;
  const auto total = batch * length;
  // There may be as many documents as tokens; sequences after the last document are empty.
  const auto offsets = at::searchsorted(document, numbers(problem, total + 1), /*out_int32=*/true);
  SortedDocuments sorted{problem, order};
  auto& own = sorted.problem;
  own.documents = own.key_documents = at::Tensor();
  own.query = packed_rows(problem.query, order);
  own.key = packed_rows(problem.key, order);
  own.value = packed_rows(problem.value, order);
  // The offsets are the same, so no sequence has fewer keys than queries.
  own.sequences = PackedSequences{offsets, offsets, {}, length, length, true, true};
  return sorted;
}

}  // namespace heed::detail
