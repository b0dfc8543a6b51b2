// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/tensor.h>
#include <heed/attend.h>
#include <heed/distributed/context_parallel.h>

#include <numeric>
#include <vector>

#include "attend/attend_part.h"
#include "core/autocast.h"
#include "core/error.h"
#include "distributed/collectives.h"
#include "distributed/differentiable.h"
#include "distributed/sequence_call.h"

namespace heed::distributed {

namespace {

using detail::kChunks;
using detail::SequenceShards;

constexpr auto kUlysses = "ulysses_attend";

/// For each chunk of the sequence, its place among the chunks of the shares, one share after the
/// other: chunk n of process r is at 2 r + n.
at::Tensor order_of_chunks(const SequenceShards& shards) {
  std::vector<int64_t> order(static_cast<size_t>(kChunks * shards.processes));
  for (int64_t rank = 0; rank < shards.processes; ++rank) {
    for (int64_t n = 0; n < kChunks; ++n) {
      order[static_cast<size_t>(shards.chunk(rank, n))] = kChunks * rank + n;
    }
  }
  return at::tensor(order, at::kLong);
}

at::Tensor reorder(const at::Tensor& chunks, const at::Tensor& order) {
  return chunks.index_select(0, order.to(chunks.device()));
}

/// Exchanges shares for heads: [B, H, L / P, D] to [B, H / P, L, D].
at::Tensor to_heads(const at::Tensor& x, const SequenceShards& shards, const ProcessGroup& group) {
  const auto processes = shards.processes, batch = x.size(0), heads = x.size(1) / processes;
  const auto parts = x.unflatten(1, {processes, heads}).movedim(1, 0);  // [P, B, H / P, L / P, D]
  const auto arrived = detail::all_to_all(parts, group, kUlysses);
  const auto chunks =
      arrived.unflatten(3, {kChunks, shards.chunk_length()}).movedim(3, 1).flatten(0, 1);
  return reorder(chunks, order_of_chunks(shards))  // [2 P, B, H / P, L / (2 P), D]
      .permute({1, 2, 0, 3, 4})
      .reshape({batch, heads, shards.length, x.size(3)});
}

/// Exchanges heads for shares: [B, H / P, L, D] to [B, H, L / P, D].
at::Tensor to_shares(const at::Tensor& x, const SequenceShards& shards, const ProcessGroup& group) {
  const auto processes = shards.processes;
  const auto chunks = x.unflatten(2, {kChunks * processes, shards.chunk_length()}).movedim(2, 0);
  const auto parts = reorder(chunks, order_of_chunks(shards).argsort())
                         .unflatten(0, {processes, kChunks})  // [P, 2, B, H / P, L / (2 P), D]
                         .movedim(1, 3)
                         .flatten(3, 4);
  return detail::all_to_all(parts, group, kUlysses).movedim(0, 1).flatten(1, 2);
}

/// Key/value heads [B, G, S / P, D], each repeated as often as the processes need to have equally
/// many, and each process those that its query heads attend to: P / gcd(P, G) times.
at::Tensor repeated(const at::Tensor& x, int64_t processes) {
  const auto copies = processes / std::gcd(processes, x.size(1));
  return copies == 1 ? x : x.repeat_interleave(copies, 1);
}

/// The options of this process's heads, for all queries.
AttendOptions options_of_heads(const detail::SequenceCall& call, int64_t first, int64_t count) {
  const auto& given = call.options();
  const auto scores_of = [&](const at::Tensor& scores) {
    const auto rows = scores.size(-2) == 1 ? scores : unshard_sequence(scores, -2, call.group());
    return rows.dim() == 4 && rows.size(1) > 1 ? rows.narrow(1, first, count) : rows;
  };
  auto options = given;
  if (given.mask()) options.mask(scores_of(*given.mask()));
  if (given.bias()) options.bias(scores_of(*given.bias()));
  if (given.alibi_slopes()) options.alibi_slopes(given.alibi_slopes()->narrow(-1, first, count));
  if (given.relative_bias()) options.relative_bias(given.relative_bias()->narrow(0, first, count));
  if (given.sinks()) options.sinks(given.sinks()->narrow(0, first, count));
  if (given.documents()) options.documents(unshard_sequence(*given.documents(), -1, call.group()));
  return options;
}

}  // namespace

at::Tensor ulysses_attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const ProcessGroup& group, const AttendOptions& options) {
  if (group && group->getSize() == 1) return attend(query, key, value, options);
  if (heed::detail::is_autocast(query)) {
    const auto call = [&](const auto& q, const auto& k, const auto& v, const auto& cast) {
      return ulysses_attend(q, k, v, group, cast);
    };
    return heed::detail::with_autocast(call, query, key, value, options);
  }
  const detail::SequenceCall call(kUlysses, query, key, value, group, options);
  const auto processes = call.processes();
  HEED_CHECK(query.size(1) % processes == 0,
             "{}: query dim 1 ({}) must be a multiple of the number of processes ({}); query {}",
             kUlysses, query.size(1), processes, c10::str(query.sizes()));
  const auto& shards = call.visibility();
  const auto heads = query.size(1) / processes, first_head = call.rank() * heads;
  return detail::run_exchange(group, kUlysses, [&] {
    const auto output = heed::detail::attend_whole_rows(
        kUlysses, to_heads(query, shards.queries, group),
        to_heads(repeated(key, processes), shards.keys, group),
        to_heads(repeated(value, processes), shards.keys, group),
        options_of_heads(call, first_head, heads), call.part_of_heads(first_head));
    return to_shares(output, shards.queries, group);
  });
}

}  // namespace heed::distributed
