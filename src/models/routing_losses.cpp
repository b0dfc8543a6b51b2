// SPDX-License-Identifier: BSD-3-Clause
#include "models/routing_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/checks.h"

namespace heed {

namespace {

void check_routings(const char* function, const std::vector<ExpertRouting>& routings,
                    const std::optional<at::Tensor>& mask) {
  HEED_CHECK(!routings.empty(), "{}: routings must not be empty", function);
  const auto& first = routings.front().logits;
  for (size_t i = 0; i < routings.size(); ++i) {
    const auto& [experts, weights, logits] = routings[i];
    const auto name = fmt::format("routings[{}] logits", i);
    detail::check_defined(function, name.c_str(), logits);
    detail::check_rank(function, name.c_str(), logits, 2);
    HEED_CHECK(experts.defined() && experts.dim() == 2 && experts.size(0) == logits.size(0) &&
                   experts.scalar_type() == at::kLong,
               "{}: routings[{}] experts must be int64 [T, K] with the T of the logits {}",
               function, i, detail::shape(logits));
    HEED_CHECK(logits.size(1) == first.size(1),
               "{}: routings[{}] must have {} experts, as routings[0] has; logits {}", function, i,
               first.size(1), detail::shape(logits));
    HEED_CHECK(!mask || (mask->defined() && mask->scalar_type() == at::kBool && mask->dim() == 1 &&
                         mask->size(0) == logits.size(0)),
               "{}: mask must be bool [T]; logits of routings[{}] {}", function, i,
               detail::shape(logits));
  }
}

/// Calls add(routing) with the rows of each routing that count, and returns their number.
template <typename Add>
int64_t visit_rows(const std::vector<ExpertRouting>& routings,
                   const std::optional<at::Tensor>& mask, const Add& add) {
  const auto kept = mask ? mask->nonzero().squeeze(1) : at::Tensor();
  const auto rows_of = [&](const at::Tensor& tensor) {
    return mask ? tensor.index_select(0, kept) : tensor;
  };
  int64_t count = 0;
  for (const auto& routing : routings) {
    const auto logits = rows_of(routing.logits);
    add(rows_of(routing.experts), logits);
    count += logits.size(0);
  }
  return count;
}

void add_to(at::Tensor& sum, const at::Tensor& part) { sum = sum.defined() ? sum + part : part; }

}  // namespace

namespace detail {

BalanceSums balance_sums(const char* function, const std::vector<ExpertRouting>& routings,
                         const std::optional<at::Tensor>& mask) {
  check_routings(function, routings, mask);
  const auto expert_num = routings.front().logits.size(1);
  BalanceSums sums;
  sums.rows = visit_rows(routings, mask, [&](const auto& experts, const auto& logits) {
    const auto ones = at::ones_like(experts, logits.scalar_type()).flatten();
    const auto none = at::zeros({expert_num}, ones.options());
    add_to(sums.chosen, none.scatter_add(0, experts.flatten(), ones));
    add_to(sums.probabilities, logits.softmax(-1).sum(0));
  });
  return sums;
}

LogitSums logit_sums(const char* function, const std::vector<ExpertRouting>& routings,
                     const std::optional<at::Tensor>& mask) {
  check_routings(function, routings, mask);
  LogitSums sums;
  sums.rows = visit_rows(routings, mask, [&](const auto&, const auto& logits) {
    add_to(sums.squares, logits.logsumexp(-1).square().sum());
  });
  return sums;
}

}  // namespace detail

at::Tensor load_balancing_loss(const std::vector<ExpertRouting>& routings,
                               const std::optional<at::Tensor>& mask) {
  const auto [chosen, probabilities, count] =
      detail::balance_sums("load_balancing_loss", routings, mask);
  const auto rows = static_cast<double>(std::max<int64_t>(count, 1));
  return (chosen * probabilities).sum() * (static_cast<double>(chosen.size(0)) / (rows * rows));
}

at::Tensor router_z_loss(const std::vector<ExpertRouting>& routings,
                         const std::optional<at::Tensor>& mask) {
  const auto [squares, count] = detail::logit_sums("router_z_loss", routings, mask);
  return squares / static_cast<double>(std::max<int64_t>(count, 1));
}

}  // namespace heed
