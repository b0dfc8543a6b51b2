// SPDX-License-Identifier: BSD-3-Clause
// Second derivatives and tangents of attend in float64, against quotients of differences of first
// derivatives, and against first derivatives.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_make_dual.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attend_verdict.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

using Tensors = std::vector<at::Tensor>;

/// A valid call of small tensors whose derivatives are moderate.
Case moderate(Case c) {
  for (auto* const size : {&c.B, &c.L, &c.S, &c.D, &c.Dv}) *size = 1 + *size % 4;
  c.G = 1 + c.G % 2;
  c.H = c.G * (1 + c.H % 2);
  c.target = c.builder == 0 && c.weights != 0 ? kAttendWithWeights : kAttend;
  c.dtype = 1;
  c.key_dtype = c.value_dtype = 0;
  c.bias_dtype = 1;
  c.mask %= 9;
  c.mask_dtype %= 4;
  c.bias %= 9;
  c.window %= 6;
  c.scale %= 4;
  c.softcap %= 3;
  c.left %= 7;
  c.right %= 7;
  if (c.left > 0 || c.right > 0) c.window = 0;
  c.alibi = c.alibi == 0 ? 0 : 2;
  c.relative_dtype = 1;
  c.global %= 3;
  c.lengths %= 4;
  c.mask_batch %= 3;
  c.batches = c.B % 2 == 0 ? 2 : 1;
  if (c.relative == 0 || c.relative_positions > 2) c.relative_positions = 0;
  if (c.relative_positions > 0) {  // each query is at the position of a key
    c.S = std::max(c.S, c.L);
    c.lengths = 0;
  }
  c.sinks = c.sinks == 0 ? 0 : 2;
  c.slopes_fill = c.sinks_fill = c.mean = c.dropout = 0;
  c.defect = kNoDefect;
  c.inference = 0;
  c.grad = 0;
  return c;
}

/// attend as a function of all that it can be differentiated by.
struct Differentiable {
  explicit Differentiable(const Case& c) : call(make_call(c)) {
    at = {call.query, call.key, call.value};
    if (call.options.bias()) at.push_back(*call.options.bias());
    if (call.options.sinks()) at.push_back(*call.options.sinks());
    if (call.options.relative_bias()) at.push_back(*call.options.relative_bias());
    if (call.options.alibi_slopes()) at.push_back(*call.options.alibi_slopes());
    output_gradient = test::uniform(output(at).sizes(), at::kDouble);
  }

  at::Tensor output(const Tensors& inputs) const {
    auto options = call.options;
    size_t next = 3;
    if (options.bias()) options.bias(inputs[next++]);
    if (options.sinks()) options.sinks(inputs[next++]);
    if (options.relative_bias()) options.relative_bias(inputs[next++]);
    if (options.alibi_slopes()) options.alibi_slopes(inputs[next]);
    return attend(inputs[0], inputs[1], inputs[2], options);
  }

  /// Gradients of the output times its gradient.
  Tensors gradients(const Tensors& inputs, bool differentiable) const {
    return torch::autograd::grad({output(inputs)}, inputs, {output_gradient}, std::nullopt,
                                 differentiable);
  }

  Call call;
  Tensors at;
  at::Tensor output_gradient;
};

Tensors directions(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(test::uniform(tensor.sizes(), at::kDouble));
  return result;
}

Tensors moved(const Tensors& tensors, const Tensors& direction, double step) {
  Tensors result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // A score of -inf stays so.
    result.push_back((tensors[i] + step * direction[i]).detach().requires_grad_());
  }
  return result;
}

double product(const Tensors& a, const Tensors& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] * b[i]).sum().item<double>();
  return sum;
}

void expect_near(double actual, double expected, double allowed, const std::string& what) {
  expect(std::abs(actual - expected) <= allowed * std::max(1.0, std::abs(expected)),
         what + ": " + std::to_string(actual) + " is not " + std::to_string(expected));
}

void check_second(const Differentiable& function) {
  const auto first = directions(function.at), second = directions(function.at);
  const auto leaves = moved(function.at, first, 0.0);
  const auto gradients = function.gradients(leaves, /*differentiable=*/true);
  // The gradients' own gradient: a softmax of one key has none.
  at::Tensor along = (gradients[0] * first[0]).sum();
  for (size_t i = 1; i < gradients.size(); ++i) along = along + (gradients[i] * first[i]).sum();
  expect(along.requires_grad(), "gradients cannot be differentiated");
  const auto actual = torch::autograd::grad({along}, leaves, {}, std::nullopt,
                                            /*create_graph=*/false, /*allow_unused=*/true);
  double derivative = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i].defined()) derivative += (actual[i] * second[i]).sum().item<double>();
  }
  constexpr double kStep = 1e-5;
  const auto at_step = [&](double step) {
    return product(function.gradients(moved(function.at, second, step), false), first);
  };
  expect_near(derivative, (at_step(kStep) - at_step(-kStep)) / (2.0 * kStep), 1e-6,
              "second derivative");
}

class ForwardLevel {
 public:
  ForwardLevel() = default;
  ~ForwardLevel() { torch::autograd::ForwardADLevel::release_idx(level); }
  ForwardLevel(const ForwardLevel&) = delete;
  ForwardLevel& operator=(const ForwardLevel&) = delete;

  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
};

at::Tensor tangent_of(const Differentiable& function, const Tensors& direction) {
  const ForwardLevel forward;
  Tensors duals;
  for (size_t i = 0; i < direction.size(); ++i) {
    // A tangent lies in memory as its tensor does, whose elements must then be memory's own.
    const auto& tensor = function.at[i];
    const auto own = tensor.is_non_overlapping_and_dense() ? tensor : tensor.clone();
    duals.push_back(at::_make_dual(own, direction[i], static_cast<int64_t>(forward.level)));
  }
  return function.output(duals)._fw_grad(forward.level);
}

void check_tangent(const Differentiable& function) {
  const auto direction = directions(function.at);
  const auto tangent = tangent_of(function, direction);
  expect(tangent.defined(), "the tangent is lost");
  const auto gradients = function.gradients(moved(function.at, direction, 0.0), false);
  expect_near((tangent * function.output_gradient).sum().item<double>(),
              product(gradients, direction), 1e-9, "tangent");
}

}  // namespace

void check_derivative(const Case& given) {
  const auto c = moderate(given);
  const Differentiable function(c);
  const auto check = [&] {
    c.builder == 0 ? check_second(function) : check_tangent(function);
    return true;
  };
  outcome(true, {}, check);
}

}  // namespace heed::fuzz
