// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "support/expect.h"
#include "support/inputs.h"

/// Calls of linear_cross_entropy, and the definition of the loss to compare them with.

namespace heed::test::of_linear_cross_entropy {

struct Case {
  at::Tensor x, weight, targets;
  LinearCrossEntropyOptions options;
};

inline at::Tensor loss(const Case& c) {
  return linear_cross_entropy(c.x, c.weight, c.targets, c.options);
}

/// The tensors that require grad.
inline std::vector<at::Tensor> leaves_of(const Case& c) {
  std::vector<at::Tensor> leaves = {c.x, c.weight};
  if (c.options.bias()) leaves.push_back(*c.options.bias());
  return leaves;
}

/// The case in another dtype or on another device, with leaves of its own.
inline Case converted(const Case& c, const at::TensorOptions& to) {
  const auto leaf = [&](const at::Tensor& tensor) {
    return tensor.detach().to(to.device()).to(to.dtype(), false, /*copy=*/true).requires_grad_();
  };
  Case own{leaf(c.x), leaf(c.weight), c.targets.to(to.device()), c.options};
  if (c.options.bias()) own.options.bias(leaf(*c.options.bias()));
  if (const auto& given = c.options.class_weight()) {
    own.options.class_weight(given->to(to.device()).to(to.dtype()));
  }
  return own;
}

/// The definition, row by row, in float64.
inline at::Tensor reference(const Case& c) {
  const auto& o = c.options;
  const auto classes = c.weight.size(0);
  const auto class_weight = o.class_weight().value_or(at::full({classes}, 1.0, at::kDouble));
  std::vector<at::Tensor> losses, squares;
  double weights = 0.0, rows = 0.0;
  for (int64_t i = 0; i < c.targets.size(0); ++i) {
    const auto y = c.targets[i].item<int64_t>();
    if (y == o.ignore_index()) {
      losses.push_back(at::zeros({}, at::kDouble));
      squares.push_back(losses.back());
      continue;
    }
    auto s = c.weight.mv(c.x[i]);
    if (o.bias()) s = s + *o.bias();
    if (o.softcap()) s = at::tanh(s / *o.softcap()) * *o.softcap();
    const auto lse = s.logsumexp(0);
    auto row = (1.0 - o.label_smoothing()) * class_weight[y] * (lse - s[y]);
    if (o.label_smoothing() > 0.0) {
      const auto sum = ((lse - s) * class_weight).sum();
      row = row + o.label_smoothing() / static_cast<double>(classes) * sum;
    }
    losses.push_back(row);
    squares.push_back(o.z_loss() * lse * lse);
    weights += class_weight[y].item<double>();
    rows += 1.0;
  }
  const auto all = at::stack(losses), z = at::stack(squares);
  if (o.reduction() == LossReduction::none) return all + z;
  if (o.reduction() == LossReduction::sum) return (all + z).sum();
  return rows == 0.0 ? all.sum() : all.sum() / weights + z.sum() / rows;
}

struct Size {
  int64_t rows, classes, width;
};

/// Every third row is ignored where `some_ignored`.
inline Case make_case(const Size& size, bool some_ignored = false) {
  Case c;
  c.x = at::randn({size.rows, size.width}, at::kDouble);
  c.weight = at::randn({size.classes, size.width}, at::kDouble) * 0.5;
  c.targets = at::randint(size.classes, {size.rows}, at::kLong);
  if (some_ignored) c.targets.slice(0, 0, {}, 3).fill_(-100);
  return c;
}

/// The loss and its gradients, from one that differs between rows.
inline std::vector<at::Tensor> results(const at::Tensor& loss,
                                       const std::vector<at::Tensor>& leaves) {
  const auto of_loss =
      loss.dim() == 0 ? at::full_like(loss, 1.5)
                      : at::arange(1.0, 1.0 + static_cast<double>(loss.numel()), loss.options());
  auto found = torch::autograd::grad({loss}, leaves, {of_loss}, /*retain_graph=*/true);
  found.push_back(loss.detach());
  return found;
}

/// Compares a case, in the dtype and on the device of `to`, with the reference.
inline void expect_definition(const Case& c, const at::TensorOptions& to, double tolerance) {
  const auto own = converted(c, to), wide = converted(own, at::TensorOptions(at::kDouble));
  const auto found = results(loss(own), leaves_of(own));
  const auto expected = results(reference(wide), leaves_of(wide));
  EXPECT_EQ(found.back().scalar_type(),
            own.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(are_alike({found[i].cpu()}, {expected[i]}, tolerance)) << i;
  }
  for (size_t i = 0; i + 1 < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), own.x.scalar_type());
  }
}

inline double tolerance_of(at::ScalarType dtype) {
  // In half types the scores, which are about 3, are rounded, and then the probabilities.
  return (dtype == at::kDouble || dtype == at::kFloat ? 128 : 16) * unit_roundoff(dtype);
}

}  // namespace heed::test::of_linear_cross_entropy
