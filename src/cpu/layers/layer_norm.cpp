// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/layer_norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <optional>
#include <tuple>

#include "core/autocast.h"
#include "core/plain.h"
#include "cpu/layers/norm_rows.h"

namespace heed::detail {

namespace {

/// LibTorch's operators with a node of heed's, whose output has a recipe.
struct RecordedLayerNorm : public torch::autograd::Function<RecordedLayerNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, double eps) {
    auto [result, mean, rstd] = at::native_layer_norm(x, weight.sizes(), weight, bias, eps);
    context->save_for_backward({x, weight, bias.value_or(at::Tensor()), mean, rstd});
    const auto again = [eps](const variable_list& from) {
      const auto added = from.size() > 2 ? from[2] : at::Tensor();
      return std::get<0>(at::native_layer_norm(from[0], from[1].sizes(), from[1], added, eps));
    };
    variable_list sources = {x, weight};
    if (bias) sources.push_back(*bias);
    keep_recipe(context, again, sources, result);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    const bool of_bias = bias.defined() && context->needs_input_grad(2);
    const auto found = at::native_layer_norm_backward(
        gradients[0], x, weight.sizes(), saved[3], saved[4], weight, bias,
        {context->needs_input_grad(0), context->needs_input_grad(1), of_bias});
    return {std::get<0>(found), std::get<1>(found), std::get<2>(found), {}};
  }
};

/// Whether the node of heed's takes these tensors.
bool node_takes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return calls_reach_kernels() && is_plain(x) && is_plain(weight) &&
         (!bias.defined() || is_plain(bias)) && !is_autocast(x) && x.dim() >= 1 && x.numel() > 0 &&
         x.size(-1) == weight.numel();
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  if (is_recorded(x, weight, bias) && node_takes(x, weight, bias)) {
    return RecordedLayerNorm::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt,
                                    eps);
  }
  if (!is_recorded(x, weight, bias) && !is_autocast(x) && kernels_normalize(x, weight, bias)) {
    return normalize_rows(x.contiguous(),
                          {/*centers=*/true, weight.contiguous(),
                           bias.defined() ? bias.contiguous() : bias, eps, /*offset=*/0.0});
  }
  // Only on the CPU and under autocast does at::layer_norm take half precision with parameters in
  // float32.
  const auto dtype = x.scalar_type();
  const bool is_taken = dtype == weight.scalar_type() || x.is_cpu() || is_autocast(x);
  if (is_taken) return at::layer_norm(x, weight.sizes(), weight, bias, eps);
  return at::layer_norm(x.to(weight.scalar_type()), weight.sizes(), weight, bias, eps).to(dtype);
}

c10::intrusive_ptr<Recipe> layer_norm_recipe(const at::Tensor& output) {
  return recipe_of<RecordedLayerNorm>(output);
}

}  // namespace heed::detail
