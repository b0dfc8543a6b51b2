// SPDX-License-Identifier: BSD-3-Clause
// linear_cross_entropy against its definition in float64: options, sizes, layouts, dtypes, blocks,
// and wrong arguments.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attend_verdict.h"
#include "modules/layers/loss_pass.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/layouts.h"

namespace heed::fuzz {

namespace {

struct Loss {
  at::Tensor x, weight, targets;
  LinearCrossEntropyOptions options;
};

std::vector<at::Tensor> leaves_of(const Loss& loss) {
  std::vector<at::Tensor> leaves = {loss.x, loss.weight};
  if (loss.options.bias()) leaves.push_back(*loss.options.bias());
  return leaves;
}

/// Numbers of size 1, or large ones.
at::Tensor draw(at::IntArrayRef sizes, at::ScalarType dtype, double largest) {
  const auto dense = (test::uniform(sizes, at::kDouble) * largest).to(dtype);
  if (dense.numel() == 0) return dense;
  // Memory that several elements share has no gradients of its own for each.
  return test::lay_out(dense, draw_below(test::kRepeatedBatch));
}

LinearCrossEntropyOptions draw_options(int64_t classes, at::ScalarType dtype) {
  LinearCrossEntropyOptions options;
  const auto precise = dtype == at::kDouble ? at::kDouble : at::kFloat;
  if (one_in(2))
    options.bias(test::lay_out(test::uniform({classes}, dtype),
                               one_in(2) ? test::kContiguous : test::kEverySecond));
  if (one_in(3)) {
    options.class_weight(test::uniform({classes}, one_in(2) ? dtype : precise).abs() + 0.1);
  }
  if (one_in(3)) options.label_smoothing(static_cast<double>(draw_below(5)) / 4);
  if (one_in(3)) options.z_loss(0.1);
  if (one_in(3)) options.softcap(static_cast<double>(1 + draw_below(3)));
  options.reduction(static_cast<LossReduction>(draw_below(3)));
  if (one_in(4)) options.ignore_index(draw_below(classes));
  return options;
}

Loss draw_loss(at::ScalarType dtype) {
  const auto rows = one_in(10) ? 0 : 1 + draw_below(20);
  const auto classes = 1 + draw_below(one_in(4) ? 300 : 40), width = 1 + draw_below(20);
  Loss loss{draw({rows, width}, dtype, one_in(4) ? 10.0 : 1.0),
            draw({classes, width}, dtype, one_in(4) ? 10.0 : 1.0),
            at::randint(classes, {rows}, at::kLong), draw_options(classes, dtype)};
  const auto ignored = test::uniform({rows}, at::kDouble) < static_cast<double>(draw_below(5)) - 2;
  loss.targets = at::where(ignored, at::full({}, loss.options.ignore_index()), loss.targets);
  return loss;
}

Loss in_double(const Loss& loss) {
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kDouble, false, /*copy=*/true).requires_grad_();
  };
  Loss wide{leaf(loss.x), leaf(loss.weight), loss.targets, loss.options};
  if (loss.options.bias()) wide.options.bias(leaf(*loss.options.bias()));
  return wide;
}

at::Tensor definition(const Loss& loss) {
  const auto& o = loss.options;
  const auto classes = loss.weight.size(0);
  const auto w =
      o.class_weight() ? o.class_weight()->to(at::kDouble) : at::full({classes}, 1.0, at::kDouble);
  auto s = (loss.x.unsqueeze(1) * loss.weight.unsqueeze(0)).sum(2);  // [N, V]
  if (o.bias()) s = s + *o.bias();
  if (o.softcap()) s = *o.softcap() * at::tanh(s / *o.softcap());
  const auto counts = loss.targets.ne(o.ignore_index()).to(at::kDouble);
  const auto is_target =
      at::arange(classes).unsqueeze(0).eq(loss.targets.unsqueeze(1)).to(at::kDouble);
  const auto shares = w * (is_target * (1.0 - o.label_smoothing()) +
                           o.label_smoothing() / static_cast<double>(classes));
  const auto lse = s.logsumexp(1, /*keepdim=*/true);
  const auto losses = (shares * (lse - s)).sum(1) * counts;
  const auto z = o.z_loss() * lse.squeeze(1).square() * counts;
  if (o.reduction() == LossReduction::none) return losses + z;
  if (o.reduction() == LossReduction::sum) return (losses + z).sum();
  const auto rows = counts.sum().clamp_min(1.0);
  const auto weights = ((w * is_target).sum(1) * counts).sum();
  return losses.sum() / at::where(weights.eq(0.0), 1.0, weights) + z.sum() / rows;
}

/// Spoils one argument. Every such call must be refused.
void spoil(Loss& loss) {
  const auto classes = loss.weight.size(0), width = loss.weight.size(1);
  auto& o = loss.options;
  switch (draw_below(9)) {
    case 0:
      loss.x = loss.x.unsqueeze(0);
      return;
    case 1:
      loss.weight = test::uniform({classes, width + 1}, loss.weight.scalar_type());
      return;
    case 2:
      loss.weight = loss.weight.to(loss.x.scalar_type() == at::kDouble ? at::kFloat : at::kDouble);
      return;
    case 3:
      loss.targets = loss.targets.to(at::kInt);
      return;
    case 4:
      loss.targets = at::full({loss.targets.size(0) + 1}, o.ignore_index());
      return;
    case 5:
      loss.x = test::uniform({2, width}, loss.x.scalar_type());
      loss.targets = at::full({2}, classes + (o.ignore_index() == classes ? 1 : 0));
      return;
    case 6:
      o.bias(test::uniform({classes + 1}, loss.x.scalar_type()));
      return;
    case 7:
      o.class_weight(test::uniform({classes + 1}, loss.x.scalar_type()));
      return;
    default:
      o.label_smoothing(-0.5);
  }
}

/// The error of a row's loss and of its probabilities: the relative error of a probability is the
/// absolute error of its score. z_loss multiplies it by the score.
double tolerance_of(const Loss& wide, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (wide.x.numel() == 0) return 0.0;
  const auto score = 1.0 + wide.x.matmul(wide.weight.t()).abs().max().item<double>();
  const auto terms = wide.x.abs().matmul(wide.weight.abs().t()).max().item<double>();
  const auto precise = test::unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return (4.0 * score * test::unit_roundoff(dtype) + 16.0 * (score + terms) * precise) * score;
}

double sum_of(const at::Tensor& tensor) { return tensor.detach().abs().sum().item<double>(); }

void check_values(const Loss& given, at::ScalarType dtype) {
  Loss loss = given;
  loss.x = loss.x.detach().requires_grad_();
  loss.weight = loss.weight.detach().requires_grad_();
  if (loss.options.bias()) loss.options.bias(loss.options.bias()->detach().requires_grad_());
  const auto found = outcome(true, {"linear_cross_entropy"}, [&] {
    return linear_cross_entropy(loss.x, loss.weight, loss.targets, loss.options);
  });
  const auto wide = in_double(loss);
  const auto expected = definition(wide);
  // A mean may divide by a weight of 0.1.
  const auto allowed = 10.0 * tolerance_of(wide, dtype);
  const auto rows = static_cast<double>(1 + loss.x.size(0));
  expect(test::is_close(found->detach(), expected.detach(), allowed * rows), "loss");
  const auto of_loss = test::uniform(found->sizes(), at::kDouble).to(found->scalar_type());
  const auto actual =
      torch::autograd::grad({*found}, leaves_of(loss), {of_loss}, /*retain_graph=*/true);
  const auto wanted = torch::autograd::grad({expected}, leaves_of(wide), {of_loss.to(at::kDouble)});
  const double factors[] = {sum_of(wide.weight), sum_of(wide.x), rows};
  for (size_t i = 0; i < actual.size(); ++i) {
    expect(test::is_close(actual[i], wanted[i], allowed * factors[i]),
           "gradient " + std::to_string(i));
  }
  const auto again = torch::autograd::grad({*found}, leaves_of(loss), {of_loss});
  expect(test::are_alike(again, actual, 2 * test::unit_roundoff(dtype)), "second backward pass");
}

}  // namespace

void check_loss(const Case& c) {
  const auto dtype = dtype_of(c.dtype % 4);
  std::optional<detail::ScopedLossBlocks> blocks;
  if (one_in(2)) blocks.emplace(1 + draw_below(4000));
  for (int64_t i = 0; i < 1 + c.steps % 12; ++i) {
    auto loss = draw_loss(dtype);
    if (!one_in(4)) {
      check_values(loss, dtype);
      continue;
    }
    spoil(loss);
    outcome(false, {"linear_cross_entropy"},
            [&] { return linear_cross_entropy(loss.x, loss.weight, loss.targets, loss.options); });
  }
}

}  // namespace heed::fuzz
