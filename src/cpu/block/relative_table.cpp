// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/relative_table.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

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
  distances_ = width_ = table.size(1);
  biases_ = table.unsqueeze(1);
  if (problem.relative_keys.defined()) {
    relative_rows_ = problem.relative_rows.contiguous();
    relative_keys_ = problem.relative_keys.contiguous();
    const auto rows_of = [](const at::Tensor& numbers) {
      return Rows{numbers.const_data_ptr<int64_t>(), numbers.size(0) == 1 ? 0 : numbers.size(1)};
    };
    of_queries_ = rows_of(relative_rows_);
    of_keys_ = rows_of(relative_keys_);
  }
  if (pays_to_expand(problem)) {
    queries_ = problem.query_length();
    keys_ = problem.key_length();
    if (table.scalar_type() == at::kDouble) {
      expand<double>(table);
    } else {
      expand<float>(table);
    }
  }
  data_ = static_cast<const char*>(biases_.const_data_ptr());
  item_ = biases_.element_size();
}

template <typename T>
void RelativeTable::expand(const at::Tensor& table) {
  const auto reach = distances_ / 2;
  elements_.reserve(static_cast<size_t>(queries_ * keys_));
  for (int64_t i = 0; i < queries_; ++i) {
    for (int64_t j = 0; j < keys_; ++j) {
      const auto apart = of_keys_.data[j] - of_queries_.data[i];
      elements_.push_back(static_cast<int32_t>(std::clamp(apart, -reach, reach) + reach));
    }
  }
  of_queries_ = of_keys_ = {};
  width_ = keys_ + 1 - keys_ % 2;  // odd, as that of a table is
  biases_ = at::zeros({table.size(0), queries_, width_}, table.options());
  for (int64_t head = 0; head < table.size(0); ++head) {
    const auto* from = table.const_data_ptr<T>() + head * distances_;
    auto* to = biases_.mutable_data_ptr<T>() + head * queries_ * width_;
    for (size_t n = 0; n < elements_.size(); n += static_cast<size_t>(keys_), to += width_) {
      for (int64_t j = 0; j < keys_; ++j) to[j] = from[elements_[n + static_cast<size_t>(j)]];
    }
  }
}

template <typename T>
void RelativeTable::add_by_distance(const at::Tensor& gradients, at::Tensor& sums) const {
  const auto* from = gradients.const_data_ptr<T>();
  for (int64_t head = 0; head < gradients.size(0); ++head) {
    auto* to = sums.mutable_data_ptr<double>() + head * distances_;
    for (size_t n = 0; n < elements_.size(); n += static_cast<size_t>(keys_), from += width_) {
      for (int64_t j = 0; j < keys_; ++j) {
        to[elements_[n + static_cast<size_t>(j)]] += static_cast<double>(from[j]);
      }
    }
  }
}

at::Tensor RelativeTable::by_distance(const at::Tensor& gradients) const {
  if (!is_expanded()) return gradients.squeeze(1);
  auto sums = at::zeros({gradients.size(0), distances_}, at::kDouble);
  if (gradients.scalar_type() == at::kDouble) {
    add_by_distance<double>(gradients, sums);
  } else {
    add_by_distance<float>(gradients, sums);
  }
  return sums;
}

}  // namespace heed::detail
