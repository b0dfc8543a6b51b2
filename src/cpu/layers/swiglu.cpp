// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <vector>

#include "core/direct.h"
#include "core/dtypes.h"
#include "cpu/layers/function.h"
#include "cpu/layers/tasks.h"

// SwiGLU, silu(gate) * up, with s = sigmoid(gate), in one pass over memory:
//
//   for each block of 4096 elements, in parallel:             # cpu/isa/layers.cpp
//     y = gate * s * up
//
//   backward, for each block of 4096 elements, in parallel:
//     gradient of gate = dy * up * s * (1 + gate * (1 - s))
//     gradient of up   = dy * gate * s
//
// Other forms clamp both, multiply the gate in the sigmoid, and add to `up`; cpu/isa/layers.h.
//
// The backward pass computes s again instead of storing it, and a product that follows computes y
// again by its recipe, so a layer keeps two hidden tensors rather than four. docs/kernels.md,
// Layers.

namespace heed::detail {

namespace {

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, const SwiGluForm& form) {
  auto result = empty_as(gate);
  for_blocks(gate, [&](const auto& kernels, int64_t /*first*/, const auto& elements) {
    kernels.swiglu(elements(gate), elements(up), form, elements(result));
  });
  return result;
}

/// x, or `limit` beyond it. The gradient at the limit itself is 1; that of at::clamp_max depends on
/// the version of LibTorch.
at::Tensor at_most(const at::Tensor& x, double limit) {
  return at::where(x > limit, at::Scalar(limit), x);
}

/// x, or the nearer of -limit and limit beyond them, as `at_most`.
at::Tensor within(const at::Tensor& x, double limit) {
  return at::where(x < -limit, at::Scalar(-limit), at_most(x, limit));
}

/// Does what `gated` does, by operators.
at::Tensor gated_by_operators(const at::Tensor& gate, const at::Tensor& up,
                              const SwiGluForm& form) {
  const bool is_silu = form.beta == 1.0 && std::isinf(form.limit) && form.offset == 0.0;
  if (is_silu) return at::silu(gate) * up;
  const auto x = at_most(gate, form.limit);
  return x * at::sigmoid(x * form.beta) * (within(up, form.limit) + form.offset);
}

variable_list gradients_of(const at::Tensor& gate, const at::Tensor& up, const SwiGluForm& form,
                           const at::Tensor& output_gradient) {
  auto of_gate = empty_as(gate), of_up = empty_as(up);
  for_blocks(gate, [&](const auto& kernels, int64_t /*first*/, const auto& elements) {
    kernels.swiglu_backward(elements(gate), elements(up), form, elements(output_gradient),
                            elements(of_gate), elements(of_up));
  });
  return {of_gate, of_up};
}

/// The gradients by operators, which autograd can differentiate again.
variable_list differentiable_gradients(const at::Tensor& gate, const at::Tensor& up,
                                       const SwiGluForm& form, const at::Tensor& output_gradient) {
  const auto precise = compute_dtype(gate.scalar_type());
  const auto x = at_most(gate.to(precise), form.limit);
  const auto gradient = output_gradient.to(precise);
  const auto u = within(up.to(precise), form.limit);
  const auto sigmoid = at::sigmoid(x * form.beta);
  const auto slope = sigmoid * (1 + form.beta * x * (1 - sigmoid));
  const auto of_gate = (gradient * (u + form.offset) * slope).masked_fill(gate > form.limit, 0);
  const auto of_up = (gradient * x * sigmoid).masked_fill(up.abs() > form.limit, 0);
  return {of_gate.to(gate.scalar_type()), of_up.to(up.scalar_type())};
}

struct SwiGlu : public torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const SwiGluForm& form) {
    context->save_for_backward({gate, up});
    context->saved_data["form"] = std::vector<double>{form.beta, form.limit, form.offset};
    auto result = gated(gate, up, form);
    const auto again = [form](const variable_list& sources) {
      return swiglu(sources[0], sources[1], form);
    };
    keep_recipe(context, again, {gate, up}, result);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto numbers = context->saved_data["form"].toDoubleVector();
    const SwiGluForm form{numbers[0], numbers[1], numbers[2]};
    const bool kernel = !at::GradMode::is_enabled() && is_plain(gradients[0]);
    auto results = kernel ? gradients_of(saved[0], saved[1], form, gradients[0].contiguous())
                          : differentiable_gradients(saved[0], saved[1], form, gradients[0]);
    results.emplace_back();  // of the form
    return results;
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, const SwiGluForm& form) {
  const bool kernel = has_kernels() && calls_reach_kernels() && is_plain(gate) && is_plain(up) &&
                      gate.numel() > 0 && gate.sizes() == up.sizes() &&
                      gate.scalar_type() == up.scalar_type() &&
                      is_attention_dtype(gate.scalar_type());
  if (!kernel) return gated_by_operators(gate, up, form);
  const auto dense_gate = gate.contiguous(), dense_up = up.contiguous();
  return is_recorded(gate, up) ? SwiGlu::apply(dense_gate, dense_up, form)
                               : gated(dense_gate, dense_up, form);
}

c10::intrusive_ptr<Recipe> swiglu_recipe(const at::Tensor& output) {
  return recipe_of<SwiGlu>(output);
}

}  // namespace heed::detail
