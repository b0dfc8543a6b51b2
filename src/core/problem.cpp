#include "core/problem.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clamp_max.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/attend_checks.h"
#include "core/block_mask.h"
#include "core/draft_tree.h"
#include "core/dtypes.h"
#include "core/tangents.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

/// Gives document ids rank 2: [L] becomes [1, L].
at::Tensor with_batch_axis(const at::Tensor& ids) {
  return ids.dim() == 1 ? ids.unsqueeze(0) : ids;
}

/// Detaches the tensor while autograd is off, so that the call may take a path without gradients.
at::Tensor without_unused_grad(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() ? tensor : tensor.detach();
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
  // A single query stands at the last key, so causal hides nothing.
  problem.causal = options.causal() && query_length > 1;
  problem.window = options.window();
  if (problem.window && *problem.window >= std::max(query_length, key_length)) {
    problem.window.reset();
  }
  problem.dropout = options.dropout();
  problem.scale = options.scale().value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  problem.softcap = options.softcap().value_or(0.0);
  if (const auto& slopes = options.alibi_slopes()) {
    const auto computed_in = compute_dtype(query.scalar_type());
    // With slopes this steep, the distance alone decides the weights. The bound keeps slope times
    // distance finite.
    const auto positions = static_cast<double>(query_length + key_length + 1);
    const auto steepest = largest_computed(computed_in) / (4.0 * positions);
    problem.alibi_slopes = slopes->to(computed_in).clamp(-steepest, steepest).contiguous();
  }
  if (const auto& sinks = options.sinks()) {
    // An infinite sink would take all of the weight; so does the largest finite number, on every
    // path.
    const auto computed_in = compute_dtype(query.scalar_type());
    problem.sinks =
        without_unused_grad(*sinks).to(computed_in).clamp_max(largest_computed(computed_in));
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
  return query_index + key_count(b) - query_count(b);
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
  if (are_chains) return;
  problem.mask = to_device(tree_mask(parents, key_lengths, problem.key_length(), problem.window),
                           problem.query.device());
  problem.window.reset();
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
