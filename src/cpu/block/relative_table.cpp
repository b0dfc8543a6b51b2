#include "cpu/block/relative_table.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

namespace heed::detail {

namespace {

/// Whether the table is to be expanded: it takes no more memory than the queries, and a task of the
/// backward pass can clear its rows quickly.
bool pays_to_expand(const Problem& problem) {
  constexpr int64_t kMostScores = 1 << 16;
  const auto length = problem.query_length(), keys = problem.key_length();
  return problem.relative_keys.defined() && problem.relative_keys.size(0) == 1 &&
         problem.relative_rows.size(0) == 1 && length <= kMostScores / keys &&
         keys <= problem.batch() * problem.head_dim();
}

}  // namespace

RelativeTable::RelativeTable(const Problem& problem) {
  if (!problem.relative_bias.defined()) return;
  const auto table = problem.relative_bias.detach().contiguous();
  distances_ = table.size(1);
  if (!pays_to_expand(problem)) {
    biases_ = table.unsqueeze(1);
    if (problem.relative_keys.defined()) {
      positions_ = problem.relative_rows.contiguous();
      of_keys_ = problem.relative_keys.contiguous();
    }
    return;
  }
  elements_ =
      relative_elements(problem.relative_rows, problem.relative_keys, problem.relative_bias);
  const auto expanded = relative_scores(table, elements_).squeeze(1);
  // A row has an odd number of elements, as kernels expect of a table.
  biases_ = at::constant_pad_nd(expanded, {0, 1 - expanded.size(2) % 2}).contiguous();
}

void RelativeTable::describe(int64_t b, int64_t head, int64_t query, QueryRow& row) const {
  row.relative_bias = nullptr;
  row.relative_keys = nullptr;
  if (!defined()) return;
  row.relative_bias = static_cast<const char*>(biases_.const_data_ptr()) +
                      this->row(head, query) * biases_.element_size();
  const auto of_batch = [b](const at::Tensor& numbers) {
    return numbers.const_data_ptr<int64_t>() + (numbers.size(0) == 1 ? 0 : b * numbers.size(1));
  };
  if (is_expanded()) {
    row.relative_position = reach();  // so that key j gets element j
  } else if (of_keys_.defined()) {
    row.relative_position = of_batch(positions_)[query];
    row.relative_keys = of_batch(of_keys_);
  } else {
    row.relative_position = row.position;
  }
}

at::Tensor RelativeTable::by_distance(const at::Tensor& gradients) const {
  if (!is_expanded()) return gradients.squeeze(1);
  const auto heads = gradients.size(0);
  const auto of_scores = gradients.narrow(2, 0, elements_.size(2)).reshape({heads, -1});
  return at::zeros({heads, distances_}, gradients.options())
      .scatter_add_(1, elements_.view({1, -1}).expand({heads, -1}), of_scores);
}

}  // namespace heed::detail
