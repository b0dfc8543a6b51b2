// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "modules/layers/linear.h"

namespace heed::detail {

namespace {

/// The factor of gelu_sigmoid. Hendrycks and Gimpel 2016 (arXiv:1606.08415), section 2.
constexpr double kSigmoidScale = 1.702;

/// The function of an activation, or that of a gate.
OutputFunction function_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
    case Activation::reglu:
      return OutputFunction::relu;
    case Activation::gelu:
    case Activation::geglu:
      return OutputFunction::gelu;
    case Activation::gelu_tanh:
    case Activation::geglu_tanh:
      return OutputFunction::gelu_tanh;
    case Activation::silu:
      return OutputFunction::silu;
    case Activation::tanh:
      return OutputFunction::tanh;
    case Activation::gelu_sigmoid:
      return OutputFunction::gelu_sigmoid;
    case Activation::swiglu:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "unexpected Activation");
}

}  // namespace

bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu ||
         activation == Activation::geglu_tanh || activation == Activation::reglu;
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (function_of(activation)) {
    case OutputFunction::relu:
      return at::relu(x);
    case OutputFunction::gelu:
      return at::gelu(x);
    case OutputFunction::gelu_tanh:
      return at::gelu(x, "tanh");
    case OutputFunction::silu:
      return at::silu(x);
    case OutputFunction::tanh:
      return at::tanh(x);
    case OutputFunction::gelu_sigmoid:
      // silu(c x) / c is x * sigmoid(c x), and keeps one tensor for the backward pass.
      return at::silu(x * kSigmoidScale) / kSigmoidScale;
    case OutputFunction::identity:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "unexpected OutputFunction");
}

at::Tensor project_activated(const torch::nn::Linear& linear, const at::Tensor& input,
                             Activation activation) {
  if (stand_in_of(*linear) == nullptr) {
    const auto output = linear_with(function_of(activation), input, linear->weight, linear->bias);
    if (output) return *output;
  }
  return activate(activation, project(linear, input));
}

SwiGluForm swiglu_form(const FeedForwardOptions& options) {
  SwiGluForm form;
  form.beta = options.swiglu_beta();
  form.limit = options.swiglu_limit().value_or(form.limit);
  form.offset = options.swiglu_offset();
  return form;
}

}  // namespace heed::detail
