#include "cpu/layers/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/dtypes.h"
#include "core/tangents.h"
#include "cpu/layers/tasks.h"
#include "cpu/tensor_rows.h"

namespace heed::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t kWeightParts = 32;  // sums of the weight's gradient, whatever the threads

/// Rows [first, last) of a contiguous tensor [.., D].
Rows rows_of(const at::Tensor& tensor, int64_t first, int64_t last) {
  const auto columns = tensor.size(-1);
  return rows_at(tensor, first * columns, last - first, columns);
}

template <typename T>
at::Tensor normalize(const LayerKernelsOf<T>& kernels, const at::Tensor& x,
                     const at::Tensor& weight, double eps) {
  auto result = at::empty_like(x);
  at::parallel_for(0, x.numel() / x.size(-1), units_per_task(x.size(-1)),
                   [&](int64_t first, int64_t last) {
                     kernels.rms_norm(rows_of(x, first, last), weight.const_data_ptr(),
                                      static_cast<T>(eps), rows_of(result, first, last));
                   });
  return result;
}

at::Tensor normalize(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return with_layer_kernels(
      x.scalar_type(), [&](const auto& kernels) { return normalize(kernels, x, weight, eps); });
}

/// The gradients of x and weight.
template <typename T>
variable_list gradients_of(const LayerKernelsOf<T>& kernels, const at::Tensor& x,
                           const at::Tensor& weight, double eps,
                           const at::Tensor& output_gradient) {
  auto result = at::empty_like(x);
  const auto columns = x.size(-1), count = x.numel() / columns;
  const auto part = std::max(units_per_task(columns), (count + kWeightParts - 1) / kWeightParts);
  const auto parts = (count + part - 1) / part;
  const auto sums = at::zeros({parts, columns}, at::CppTypeToScalarType<T>::value);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const auto first = p * part, last = std::min(count, first + part);
      kernels.rms_norm_backward(rows_of(x, first, last), rows_of(output_gradient, first, last),
                                weight.const_data_ptr(), static_cast<T>(eps),
                                rows_of(result, first, last),
                                sums.template data_ptr<T>() + p * columns);
    }
  });
  return {result, sums.sum(0).to(weight.scalar_type())};
}

/// The same by operators, which have derivatives of their own.
variable_list differentiable_gradients(const at::Tensor& x, const at::Tensor& weight, double eps,
                                       const at::Tensor& output_gradient) {
  const auto precise = compute_dtype(x.scalar_type());
  const auto row = x.to(precise), weighted = output_gradient.to(precise) * weight.to(precise);
  const auto inverse = (row.square().mean(-1, true) + eps).rsqrt();
  const auto along = (row * weighted).mean(-1, true) * inverse.square();
  const auto of_weight = (output_gradient.to(precise) * row * inverse).sum_to_size(weight.sizes());
  return {(inverse * (weighted - row * along)).to(x.scalar_type()),
          of_weight.to(weight.scalar_type())};
}

struct RmsNorm : public torch::autograd::Function<RmsNorm> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          double eps) {
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return normalize(x, weight, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const auto eps = context->saved_data["eps"].toDouble();
    variable_list result;
    if (at::GradMode::is_enabled()) {
      result = differentiable_gradients(x, weight, eps, gradients[0]);
    } else {
      const auto dense = gradients[0].resolve_neg().contiguous();
      result = with_layer_kernels(x.scalar_type(), [&](const auto& kernels) {
        return gradients_of(kernels, x, weight, eps, dense);
      });
    }
    result.emplace_back();  // eps
    return result;
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const bool kernel = x.device().is_cpu() && x.numel() > 0 && is_attention_dtype(x.scalar_type()) &&
                      x.scalar_type() == weight.scalar_type() && !has_tangent(x) &&
                      !has_tangent(weight);
  if (!kernel) return at::rms_norm(x, weight.sizes(), weight, eps);
  const auto dense = x.resolve_neg().contiguous();
  const auto dense_weight = weight.resolve_neg().contiguous();
  if (!(at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad()))) {
    return normalize(dense, dense_weight, eps);
  }
  return RmsNorm::apply(dense, dense_weight, eps);
}

}  // namespace heed::detail
