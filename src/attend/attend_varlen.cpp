// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/functional.h>
#include <ATen/ops/cat.h>
#include <heed/attend.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "attend/choose_path.h"
#include "attend/paths/cuda/trust.h"
#include "core/attend_checks.h"
#include "core/autocast.h"
#include "core/checks.h"
#include "core/offsets.h"
#include "core/to_device.h"

namespace heed {

namespace {

/// Packed tensors and offsets, and whether the lse is wanted. Errors begin with `function`.
struct VarlenCall {
  const char* function;
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  const at::Tensor& query_offsets;
  const at::Tensor& key_offsets;
  bool with_lse;
};

/// Output [T, H, Dv] and, if it is wanted, lse [T, H].
using Packed = std::tuple<at::Tensor, at::Tensor>;

/// Neighboring sequences of equal lengths, which are computed as one batch.
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

/// Splits rows by runs, in one operator, so that the gradient is one concatenation.
std::vector<at::Tensor> split_runs(const at::Tensor& packed, const std::vector<Run>& runs,
                                   int64_t Run::*length) {
  return packed.split_with_sizes(
      c10::fmap(runs, [&](const Run& run) { return run.count * run.*length; }));
}

/// Views the rows of a run [count * length, H, D] as a batch [count, H, length, D].
at::Tensor as_batch(const at::Tensor& rows, int64_t count, int64_t length) {
  return rows.unflatten(0, {count, length}).transpose(1, 2);
}

void check_arguments(const VarlenCall& call, const AttendOptions& options) {
  const auto* function = call.function;
  detail::check_plain_keys(function, options);
  detail::check_tensors(function, call.query, call.key, call.value, /*rank=*/3);
  detail::check_head_tensors(function, call.query, options);
  detail::check_score_options(function, options);
  detail::check_precision(function, call.query.scalar_type(), options);
  detail::check_no_scores(function, "the offsets say what a query may see", options);
  detail::check_offsets_shape(function, "query_offsets", call.query_offsets);
  detail::check_offsets_shape(function, "key_offsets", call.key_offsets);
  HEED_CHECK(call.query_offsets.size(0) == call.key_offsets.size(0),
             "{}: key_offsets dim 0 ({}) must equal query_offsets dim 0 ({})", function,
             call.key_offsets.size(0), call.query_offsets.size(0));
}

void check_longest(const VarlenCall& call, const char* name, int64_t length, int64_t total) {
  HEED_CHECK(length >= 0 && length <= total,
             "{}: {} ({}) must be at least 0 and at most the packed length ({})", call.function,
             name, length, total);
}

/// Returns the lengths between offsets. Checks the offsets, and that no length is above `most`, if
/// it is given, which errors call `name`.
std::vector<int64_t> lengths_between(const VarlenCall& call, const char* offsets_name,
                                     const at::Tensor& offsets, int64_t total, const char* name,
                                     std::optional<int64_t> most) {
  auto lengths = detail::checked_lengths(call.function, offsets_name, offsets, total);
  HEED_CHECK(!most || *most >= detail::longest(lengths),
             "{}: {} ({}) must be at least the longest length of {} ({})", call.function, name,
             most.value_or(0), offsets_name, detail::longest(lengths));
  return lengths;
}

/// Views packed rows [T, H, D] as a batch of one, [1, H, T, D].
at::Tensor as_one_batch(const at::Tensor& packed) { return packed.transpose(0, 1).unsqueeze(0); }

/// Computes all sequences in one call, because LibTorch's kernels for CUDA read the offsets on the
/// device.
Packed attend_on_cuda(const VarlenCall& call, const AttendOptions& options,
                      detail::PackedSequences packed) {
  const auto wanted = call.with_lse ? detail::Wanted::output_and_lse : detail::Wanted::output;
  auto problem =
      detail::make_problem(call.function, as_one_batch(call.query), as_one_batch(call.key),
                           as_one_batch(call.value), options, wanted);
  // make_problem takes all sequences for one: it drops causal from a call with one query, which may
  // have later keys here, and an alignment that makes no difference to as many queries as keys.
  problem.causal = options.causal() || options.window() == 1 || options.right_window() == 0;
  if (problem.causal) problem.right_window.reset();
  problem.top_left = options.top_left();
  problem.sequences = std::move(packed);
  const auto attended = detail::attend_problem(problem);
  return {attended.output.squeeze(0).transpose(0, 1),
          call.with_lse ? attended.lse.squeeze(0).transpose(0, 1) : at::Tensor()};
}

at::Tensor on_device(const at::Tensor& offsets, const at::Tensor& query) {
  return detail::to_device(offsets, query.device()).to(at::kInt).contiguous();
}

Packed attend_to_runs(const VarlenCall& call, std::vector<Run> runs, const AttendOptions& options) {
  if (runs.empty()) runs.push_back({1, 0, 0});  // an empty run, so that autograd records the call
  const auto queries = split_runs(call.query, runs, &Run::query_length);
  const auto keys = split_runs(call.key, runs, &Run::key_length);
  const auto values = split_runs(call.value, runs, &Run::key_length);
  std::vector<at::Tensor> outputs, lses;
  outputs.reserve(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    const auto query = as_batch(queries[i], run.count, run.query_length);
    const auto key = as_batch(keys[i], run.count, run.key_length);
    const auto value = as_batch(values[i], run.count, run.key_length);
    at::Tensor output, lse;
    if (call.with_lse) {
      std::tie(output, lse) = attend_with_lse(query, key, value, options);
      lses.push_back(lse.transpose(1, 2).flatten(0, 1));  // [rows, H]
    } else {
      output = attend(query, key, value, options);
    }
    outputs.push_back(output.transpose(1, 2).flatten(0, 1));  // [rows, H, Dv]
  }
  const auto joined = [](const std::vector<at::Tensor>& parts) {
    return parts.size() == 1 ? parts.front() : at::cat(parts);
  };
  return {joined(outputs), call.with_lse ? joined(lses) : at::Tensor()};
}

/// The longest query and key lengths, if the caller knows them: then offsets on a CUDA device need
/// not be read.
struct Longest {
  std::optional<int64_t> query, key;
};

/// Where each sequence ends, as LibTorch's kernels for CUDA read it.
detail::PackedSequences packed_sequences(const VarlenCall& call, const Longest& longest,
                                         const std::vector<int64_t>& query_lengths,
                                         const std::vector<int64_t>& key_lengths) {
  const auto& [function, query, key, value, query_offsets, key_offsets, with_lse] = call;
  const bool knows_longest = longest.query.has_value();
  detail::PackedSequences packed;
  packed.same_offsets = knows_longest ? query_offsets.is_same(key_offsets)  // these are not read
                                      : query_lengths == key_lengths;
  packed.query_offsets = on_device(query_offsets, query);
  packed.key_offsets = packed.same_offsets ? packed.query_offsets : on_device(key_offsets, query);
  packed.longest_query = longest.query.value_or(detail::longest(query_lengths));
  packed.longest_key = longest.key.value_or(detail::longest(key_lengths));
  packed.enough_keys = packed.same_offsets;
  if (!knows_longest) {
    packed.enough_keys = std::equal(query_lengths.begin(), query_lengths.end(), key_lengths.begin(),
                                    std::less_equal<>());
    packed.single_queries = std::count(query_lengths.begin(), query_lengths.end(), 1) ==
                            static_cast<std::ptrdiff_t>(query_lengths.size());
  }
  return packed;
}

Packed attend_sequences(const VarlenCall& call, const Longest& longest,
                        const AttendOptions& options) {
  if (detail::is_autocast(call.query)) {
    const auto again = [&](const auto& q, const auto& k, const auto& v, const auto& cast) {
      return attend_sequences(
          {call.function, q, k, v, call.query_offsets, call.key_offsets, call.with_lse}, longest,
          cast);
    };
    return detail::with_autocast(again, call.query, call.key, call.value, options);
  }
  check_arguments(call, options);
  const auto queries = call.query.size(0), keys = call.key.size(0);
  if (longest.query && longest.key) {
    check_longest(call, "longest_query", *longest.query, queries);
    check_longest(call, "longest_key", *longest.key, keys);
  }
  const bool in_runs = !call.query.is_cuda() || call.query_offsets.size(0) == 1;
  std::vector<int64_t> query_lengths, key_lengths;
  if (in_runs || !longest.query || detail::cuda_routes() == detail::CudaRoutes::verify) {
    query_lengths = lengths_between(call, "query_offsets", call.query_offsets, queries,
                                    "longest_query", longest.query);
    key_lengths =
        lengths_between(call, "key_offsets", call.key_offsets, keys, "longest_key", longest.key);
  }
  if (in_runs) return attend_to_runs(call, find_runs(query_lengths, key_lengths), options);
  return attend_on_cuda(call, options, packed_sequences(call, longest, query_lengths, key_lengths));
}

}  // namespace

at::Tensor attend_varlen(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                         const AttendOptions& options) {
  return std::get<0>(attend_sequences(
      {"attend_varlen", query, key, value, query_offsets, key_offsets, false}, {}, options));
}

at::Tensor attend_varlen(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& query_offsets, const at::Tensor& key_offsets,
                         int64_t longest_query, int64_t longest_key, const AttendOptions& options) {
  return std::get<0>(
      attend_sequences({"attend_varlen", query, key, value, query_offsets, key_offsets, false},
                       {longest_query, longest_key}, options));
}

std::tuple<at::Tensor, at::Tensor> attend_varlen_with_lse(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& query_offsets, const at::Tensor& key_offsets, const AttendOptions& options) {
  return attend_sequences(
      {"attend_varlen_with_lse", query, key, value, query_offsets, key_offsets, true}, {}, options);
}

std::tuple<at::Tensor, at::Tensor> attend_varlen_with_lse(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& query_offsets, const at::Tensor& key_offsets, int64_t longest_query,
    int64_t longest_key, const AttendOptions& options) {
  return attend_sequences(
      {"attend_varlen_with_lse", query, key, value, query_offsets, key_offsets, true},
      {longest_query, longest_key}, options);
}

}  // namespace heed
