// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd.h>

#include "modules/layers/linear.h"
#include "rows.h"

namespace heed::bench {

namespace {

/// A vocabulary of tens of thousands of classes: the loss must be faster than with all scores.
constexpr double kFaster = 1.0;
/// Small vocabularies, for which the scores take little memory.
constexpr double kAsFast = 0.98;

struct LossShape {
  int64_t rows, width, classes;
  at::ScalarType dtype;
};

struct LossInputs {
  at::Tensor x, weight, targets;
};

LossInputs make_loss_inputs(const LossShape& s, bool training) {
  LossInputs in{at::randn({s.rows, s.width}).to(s.dtype),
                at::randn({s.classes, s.width}).mul_(0.05).to(s.dtype),
                at::randint(s.classes, {s.rows}, at::kLong)};
  if (training) {
    in.x.requires_grad_();
    in.weight.requires_grad_();
  }
  return in;
}

at::Tensor heed_loss(const LossInputs& in) {
  return linear_cross_entropy(in.x, in.weight, in.targets);
}

at::Tensor loss_of_all_scores(const LossInputs& in) {
  const auto scores = detail::linear(in.x, in.weight).to(at::kFloat);
  return at::cross_entropy_loss(scores, in.targets);
}

/// A training step's gradients, of which that of x is compared.
template <typename Loss>
at::Tensor gradient(const LossInputs& in, const Loss& loss) {
  return torch::autograd::grad({loss(in)}, {in.x, in.weight}).front();
}

void add_loss_row(Rows& rows, const LossShape& s, bool training) {
  RowTraits traits;
  const double products = training ? 3.0 : 1.0;
  traits.flops = products * 2.0 * static_cast<double>(s.rows * s.width * s.classes);
  traits.training = training;
  const auto run = [training](auto loss) {
    return [training, loss](LossInputs& in) { return training ? gradient(in, loss) : loss(in); };
  };
  const auto target = s.classes > 10'000 ? kFaster : kAsFast;
  add_row<LossInputs>(
      rows,
      fmt::format("loss/{}/{}/N{}_E{}_V{}", training ? "training" : "inference",
                  c10::toString(s.dtype), s.rows, s.width, s.classes),
      traits, [s, training] { return make_loss_inputs(s, training); },
      {{"heed", run(heed_loss)}, {"linear+cross_entropy", run(loss_of_all_scores), target}});
}

}  // namespace

void add_loss_rows(Rows& rows) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool training : {false, true}) {
      add_loss_row(rows, {2048, 576, 49152, dtype}, training);
      add_loss_row(rows, {2048, 576, 1024, dtype}, training);
      add_loss_row(rows, {3072, 384, 96, dtype}, training);
      add_loss_row(rows, {512, 64, 96, dtype}, training);
    }
  }
}

}  // namespace heed::bench
