#include "cpu/layers/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

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
// The backward pass computes s again instead of storing it, and a product that follows computes y
// again by its recipe, so a layer keeps two hidden tensors rather than four. docs/kernels.md,
// Layers.

namespace heed::detail {

namespace {

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) {
  auto result = empty_as(gate);
  for_blocks(gate, [&](const auto& kernels, int64_t /*first*/, const auto& elements) {
    kernels.swiglu(elements(gate), elements(up), elements(result));
  });
  return result;
}

variable_list gradients_of(const at::Tensor& gate, const at::Tensor& up,
                           const at::Tensor& output_gradient) {
  auto of_gate = empty_as(gate), of_up = empty_as(up);
  for_blocks(gate, [&](const auto& kernels, int64_t /*first*/, const auto& elements) {
    kernels.swiglu_backward(elements(gate), elements(up), elements(output_gradient),
                            elements(of_gate), elements(of_up));
  });
  return {of_gate, of_up};
}

/// The gradients by operators, which autograd can differentiate again.
variable_list differentiable_gradients(const at::Tensor& gate, const at::Tensor& up,
                                       const at::Tensor& output_gradient) {
  const auto precise = compute_dtype(gate.scalar_type());
  const auto x = gate.to(precise), gradient = output_gradient.to(precise);
  const auto sigmoid = at::sigmoid(x);
  const auto slope = sigmoid * (1 + x * (1 - sigmoid));
  return {(gradient * up.to(precise) * slope).to(gate.scalar_type()),
          (gradient * x * sigmoid).to(up.scalar_type())};
}

struct SwiGlu : public torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    auto result = gated(gate, up);
    const auto again = [](const variable_list& sources) { return swiglu(sources[0], sources[1]); };
    keep_recipe(context, again, {gate, up}, result);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const bool kernel = !at::GradMode::is_enabled() && is_plain(gradients[0]);
    return kernel ? gradients_of(saved[0], saved[1], gradients[0].contiguous())
                  : differentiable_gradients(saved[0], saved[1], gradients[0]);
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const bool kernel = has_kernels() && calls_reach_kernels() && is_plain(gate) && is_plain(up) &&
                      gate.numel() > 0 && gate.sizes() == up.sizes() &&
                      gate.scalar_type() == up.scalar_type() &&
                      is_attention_dtype(gate.scalar_type());
  if (!kernel) return at::silu(gate) * up;
  const auto dense_gate = gate.contiguous(), dense_up = up.contiguous();
  return is_recorded(gate, up) ? SwiGlu::apply(dense_gate, dense_up) : gated(dense_gate, dense_up);
}

c10::intrusive_ptr<Recipe> swiglu_recipe(const at::Tensor& output) {
  return recipe_of<SwiGlu>(output);
}

}  // namespace heed::detail
