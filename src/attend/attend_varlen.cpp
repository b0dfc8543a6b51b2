#include <ATen/ops/cat.h>
#include <heed/attend.h>

#include <vector>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/offsets.h"

namespace heed {

namespace {

constexpr auto kAttendVarlen = "attend_varlen";

/// Neighbors of equal lengths, attended to as one batch.
struct Run {
  int64_t count, query_length, key_length;
};

std::vector<Run> find_runs(const std::vector<int64_t>& query_lengths,
                           const std::vector<int64_t>& key_lengths) {
  std::vector<Run> runs;
  for (size_t n = 0; n < query_lengths.size(); ++n) {
    const bool same = !runs.empty() && runs.back().query_length == query_lengths[n] &&
                      runs.back().key_length == key_lengths[n];
    if (!same) runs.push_back({0, query_lengths[n], key_lengths[n]});
    ++runs.back().count;
  }
  return runs;
}

/// Rows of each run: one split, whose gradient is one concatenation.
std::vector<at::Tensor> split_runs(const at::Tensor& packed, const std::vector<Run>& runs,
                                   int64_t Run::*length) {
  std::vector<int64_t> rows;
  rows.reserve(runs.size());
  for (const auto& run : runs) rows.push_back(run.count * run.*length);
  return packed.split_with_sizes(rows);
}

/// [count * length, H, D] to [count, H, length, D], a view.
at::Tensor as_batch(const at::Tensor& rows, int64_t count, int64_t length) {
  return rows.unflatten(0, {count, length}).transpose(1, 2);
}

void check_arguments(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                     const AttendOptions& options) {
  detail::check_tensors(kAttendVarlen, query, key, value, /*rank=*/3);
  detail::check_head_tensors(kAttendVarlen, query, options);
  detail::check_score_options(kAttendVarlen, options);
  detail::check_precision(kAttendVarlen, query.scalar_type(), options);
  HEED_CHECK(!options.mask(), "{}: mask must be absent: the offsets say what a query may see",
             kAttendVarlen);
  HEED_CHECK(!options.documents() && !options.key_documents(),
             "{}: documents must be absent: the offsets say what a query may see", kAttendVarlen);
  HEED_CHECK(!options.bias(), "{}: bias must be absent: sequences differ in shape", kAttendVarlen);
  detail::check_offsets(kAttendVarlen, "query_offsets", query_offsets, query.size(0));
  detail::check_offsets(kAttendVarlen, "key_offsets", key_offsets, key.size(0));
  HEED_CHECK(query_offsets.size(0) == key_offsets.size(0),
             "{}: key_offsets dim 0 ({}) must equal query_offsets dim 0 ({})", kAttendVarlen,
             key_offsets.size(0), query_offsets.size(0));
}

}  // namespace

at::Tensor attend_varlen(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                         const AttendOptions& options) {
  check_arguments(query, key, value, query_offsets, key_offsets, options);
  auto runs = find_runs(detail::lengths(query_offsets), detail::lengths(key_offsets));
  if (runs.empty()) runs.push_back({1, 0, 0});  // no sequence is one of no tokens, in autograd too
  const auto queries = split_runs(query, runs, &Run::query_length);
  const auto keys = split_runs(key, runs, &Run::key_length);
  const auto values = split_runs(value, runs, &Run::key_length);
  std::vector<at::Tensor> outputs;
  outputs.reserve(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    const auto output = attend(as_batch(queries[i], run.count, run.query_length),
                               as_batch(keys[i], run.count, run.key_length),
                               as_batch(values[i], run.count, run.key_length), options);
    outputs.push_back(output.transpose(1, 2).flatten(0, 1));  // [rows, H, Dv]
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

}  // namespace heed
