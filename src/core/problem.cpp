// SPDX-License-Identifier: BSD-3-Clause
#include "core/problem.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/attend_checks.h"
#include "core/block_mask.h"
#include "core/draft_tree.h"
#include "core/dtypes.h"
#include "core/error.h"
#include "core/plain.h"
#include "core/tangents.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

/// Gives a tensor of numbers for each token or head rank 2: [L] becomes [1, L].
at::Tensor with_batch_axis(const at::Tensor& numbers) {
  return numbers.dim() == 1 ? numbers.unsqueeze(0) : numbers;
}

/// Detaches the tensor while autograd is off, so that the call may take a path without gradients.
at::Tensor without_unused_grad(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() ? tensor : tensor.detach();
}

/// Sets causal, windows and alignment, but for those that hide nothing. The lengths are those of
/// the longest sequence.
void set_windows(Problem& problem, const AttendOptions& options, int64_t query_length,
                 int64_t key_length) {
  const bool has_lengths = options.query_lengths() || options.key_lengths();
  problem.top_left = options.top_left() && (has_lengths || query_length != key_length);
  // The most keys that exist before, and after, the position of a query.
  const auto before = problem.top_left ? query_length - 1 : key_length - 1;
  const auto after = problem.top_left ? key_length - 1 : query_length - 1;
  auto left = options.left_window(), right = options.right_window();
  if (options.window()) left = right = *options.window() - 1;
  // Global tokens lift windows, but not causal.
  const bool as_causal = right == 0 && !options.global_tokens();
  problem.causal = (options.causal() || as_causal) && after > 0;
  if (left && *left < before) problem.left_window = left;
  if (right && *right < after && !problem.causal) problem.right_window = right;
}

/// Lengths [B] as kernels read them. On the CPU they have been checked.
at::Tensor readable_lengths(const std::optional<at::Tensor>& lengths, int64_t most) {
  if (!lengths) return {};
  const auto own = lengths->contiguous();
  return own.is_cpu() ? own : own.clamp(0, most);
}

/// The sequences of a call with lengths.
PaddedSequences padded_sequences(const Problem& problem, const AttendOptions& options) {
  PaddedSequences padded{readable_lengths(options.query_lengths(), problem.query.size(2)),
                         readable_lengths(options.key_lengths(), problem.key.size(2))};
  if (!padded.key_lengths.defined()) {
    padded.key_lengths = at::full_like(padded.query_lengths, problem.key.size(2));
  }
  return padded;
}

/// The positions of all queries: int64 [B or 1, L].
at::Tensor positions_of_queries(const Problem& problem) {
  const auto length = problem.query.size(2);
  auto places = at::arange(length, problem.query.options().dtype(at::kLong)).unsqueeze(0);
  if (problem.top_left) return places;
  const auto* padded = problem.padded();
  if (!padded) return places + problem.position(0);
  const auto last = places + padded->key_lengths.unsqueeze(1);
  return padded->query_lengths.defined() ? last - padded->query_lengths.unsqueeze(1)
                                         : last - length;
}

/// Checks that the positions of the queries that exist are those of keys. Numbers on another device
/// than the CPU are not read.
void check_rows_exist(const char* function, const Problem& problem, const at::Tensor& positions,
                      const at::Tensor& has_key) {
  const bool is_readable = positions.is_cpu() && is_unwrapped(positions) && calls_reach_kernels();
  if (!is_readable || problem.batch() == 0) return;
  auto fits = has_key;
  if (const auto* padded = problem.padded(); padded && padded->query_lengths.defined()) {
    const auto places = at::arange(problem.query_length(), positions.options()).unsqueeze(0);
    fits = fits.logical_or(places.ge(padded->query_lengths.unsqueeze(1)));
  }
  HEED_CHECK(fits.all().item<bool>(),
             "{}: relative_positions must have an element for the position of each query, which "
             "are {} to {}; S {}",
             function, positions.min().item<int64_t>(), positions.max().item<int64_t>(),
             problem.key_length());
}

/// Sets what global tokens and relative positions, which are [S] or [B, S], mean for queries and
/// keys. The sequences must be set.
void set_tokens(const char* function, Problem& problem, const AttendOptions& options) {
  const bool has_global = options.global_tokens() && problem.has_window();
  const auto& relative = options.relative_positions();
  // The difference of two positions must not overflow.
  constexpr auto kFarthest = std::numeric_limits<int64_t>::max() / 2;
  if (has_global) problem.global_keys = with_batch_axis(*options.global_tokens());
  if (relative) problem.relative_keys = with_batch_axis(*relative).clamp(-kFarthest, kFarthest);
  const auto keys = problem.key_length();
  if (!problem.padded() && problem.query_length() == keys && problem.position(0) == 0) {
    problem.global_rows = problem.global_keys;
    problem.relative_rows = problem.relative_keys;
    return;
  }
  if (!has_global && !relative) return;
  const auto positions = positions_of_queries(problem);
  const auto exists = at::bitwise_and(positions.ge(0), positions.lt(keys));
  const auto at_rows = [&](const at::Tensor& of_keys) {
    if (keys == 0) return at::zeros(positions.sizes(), of_keys.options());
    const auto batch = positions.size(0) == 1 ? of_keys.size(0) : positions.size(0);
    return of_keys.expand({batch, -1}).gather(1, positions.clamp(0, keys - 1).expand({batch, -1}));
  };
  if (has_global) problem.global_rows = at::bitwise_and(at_rows(problem.global_keys), exists);
  if (!relative) return;
  check_rows_exist(function, problem, positions, exists);
  problem.relative_rows = at_rows(problem.relative_keys);
}

/// Makes a problem from checked arguments. The lengths are those of the whole call, if `query` and
/// `key` are a part of it.
Problem make_checked_problem(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const AttendOptions& options,
                             int64_t query_length, int64_t key_length) {
  Problem problem;
  problem.query = query;
  problem.key = key;
  problem.value = value;
  if (const auto& mask = options.mask()) {
    problem.mask = with_head_axis(mask->scalar_type() == at::kBool ? *mask : mask->ne(0));
  }
  if (const auto& mask = options.block_mask(); mask && mask->bits().hides()) {
    problem.block_mask = mask;
  }
  if (const auto& documents = options.documents()) {
    problem.documents = with_batch_axis(*documents);
    const auto& of_keys = options.key_documents();
    problem.key_documents = of_keys ? with_batch_axis(*of_keys) : problem.documents;
  }
  if (const auto& bias = options.bias()) {
    problem.bias = with_head_axis(without_unused_grad(*bias));
  }
  set_windows(problem, options, query_length, key_length);
  const auto& scores = problem.mask.defined() ? problem.mask : problem.bias;
  if (scores.defined()) problem.mask_batch = options.mask_batch();
  problem.dropout = options.dropout();
  problem.scale = options.scale().value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  problem.softcap = options.softcap().value_or(0.0);
  const auto computed_in = compute_dtype(query.scalar_type());
  if (const auto& slopes = options.alibi_slopes()) {
    // With slopes this steep, the distance alone decides the weights. The bound keeps slope times
    // distance finite.
    const auto positions = static_cast<double>(query_length + key_length + 1);
    const auto steepest = largest_computed(computed_in) / (4.0 * positions);
    const auto all = with_batch_axis(without_unused_grad(*slopes)).to(computed_in);
    // LibTorch has no gradient of clamp on the meta device.
    const auto bounded = all.is_meta() ? all : all.clamp(-steepest, steepest);
    problem.alibi_slopes = bounded.contiguous();
  }
  if (const auto& sinks = options.sinks()) {
    // An infinite sink would take all of the weight; so does the largest finite number, on every
    // path.
    problem.sinks =
        without_unused_grad(*sinks).to(computed_in).clamp_max(largest_computed(computed_in));
  }
  if (const auto& bias = options.relative_bias()) {
    problem.relative_bias = without_unused_grad(*bias).to(computed_in).contiguous();
  }
  if (options.key_scales()) {
    problem.key_scales = *options.key_scales();
    problem.value_scales = options.value_scales().value_or(at::Tensor());
  }
  for (const auto member : kProblemTensors) {
    // The memory of a tensor with the negative bit holds negated numbers, and kernels read memory.
    auto& tensor = problem.*member;
    if (tensor.defined() && tensor.is_neg()) tensor = tensor.resolve_neg();
  }
  return problem;
}

}  // namespace

at::Tensor same_document(const at::Tensor& documents, const at::Tensor& key_documents) {
  return documents.unsqueeze(1).unsqueeze(3).eq(key_documents.unsqueeze(1).unsqueeze(2));
}

bool Problem::needs_grad() const {
  return at::GradMode::is_enabled() &&
         std::any_of(kProblemTensors, kProblemTensors + kGradientTensors, [&](auto member) {
           return (this->*member).defined() && (this->*member).requires_grad();
         });
}

bool Problem::has_tangent() const {
  return std::any_of(kProblemTensors, kProblemTensors + kGradientTensors,
                     [&](auto member) { return detail::has_tangent(this->*member); });
}

at::ScalarType Problem::result_dtype() const {
  return rounds() ? query.scalar_type() : compute_dtype(query.scalar_type());
}

int64_t Problem::position(int64_t b, int64_t query_index) const {
  if (!padded()) return position(query_index);
  return top_left ? query_index : query_index + key_count(b) - query_count(b);
}

KeyRange Problem::visible_keys(int64_t query_index) const {
  return keys_near(position(query_index), key_length());
}

KeyRange Problem::visible_keys(int64_t b, int64_t query_index) const {
  if (query_index >= query_count(b)) return {0, 0};
  return keys_near(position(b, query_index), key_count(b));
}

KeyRange Problem::visible_keys(int64_t b, int64_t first, int64_t last) const {
  last = std::min(last, query_count(b));
  if (first >= last) return {0, 0};
  return {visible_keys(b, first).first, visible_keys(b, last - 1).last};
}

void set_draft(Problem& problem, const at::Tensor& parents, at::IntArrayRef key_lengths) {
  const auto length = parents.size(1);
  const at::IntArrayRef numbers(parents.const_data_ptr<int64_t>(), parents.numel());
  bool are_chains = true;
  for (int64_t n = 0; n < parents.size(0); ++n) {
    are_chains = are_chains && is_chain(numbers.slice(n * length, length));
  }
  problem.causal = are_chains && length > 1;
  problem.right_window.reset();
  if (are_chains) return;
  const auto window = problem.left_window ? std::optional(*problem.left_window + 1) : std::nullopt;
  problem.mask = to_device(tree_mask(parents, key_lengths, problem.key_length(), window),
                           problem.query.device());
  problem.left_window.reset();
}

Problem make_problem(const char* function, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const AttendOptions& options, Wanted wanted,
                     const std::optional<Part>& part) {
  check_attend(function, query, key, value, options);
  auto problem =
      make_checked_problem(query, key, value, options, part ? part->query_length : query.size(2),
                           part ? part->key_length : key.size(2));
  if (const auto& parents = options.parents()) {
    const auto trees = with_batch_axis(*parents).cpu().contiguous();
    set_draft(problem, trees, std::vector<int64_t>(trees.size(0), key.size(2)));
  }
  problem.wanted = wanted;
  if (part) problem.sequences = *part;
  if (options.query_lengths() || options.key_lengths()) {
    problem.sequences = padded_sequences(problem, options);
  }
  set_tokens(function, problem, options);
  return problem;
}

Problem make_paged_problem(const at::Tensor& query, const at::Tensor& key_pages,
                           const at::Tensor& value_pages, PagedSequences sequences,
                           const AttendOptions& options) {
  auto problem = make_checked_problem(query, key_pages, value_pages, options, query.size(2),
                                      sequences.longest);
  problem.sequences = std::move(sequences);
  return problem;
}

}  // namespace heed::detail
