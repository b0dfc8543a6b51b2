// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "core/dtypes.h"
#include "cpu/layers/function.h"
#include "cpu/layers/norm_rows.h"
#include "cpu/layers/tasks.h"
#include "cpu/tensor_rows.h"

// RMSNorm over rows x [D], with inverse = 1 / sqrt(mean(x^2) + eps), in one pass over memory:
//
//   for each row, in parallel:                              # norm_rows.cpp
//     y = x * inverse * (weight + offset)
//
//   backward, for each of at most 32 splits of the rows, in parallel:
//     for each row of the split:
//       g = dy * (weight + offset)
//       dx = inverse * (g - x * mean(x * g) * inverse^2)
//       sums[split] += dy * x * inverse
//   gradient of weight = sum of `sums` over the splits
//
// The backward pass computes `inverse` again instead of storing it. Splits depend only on the
// shape, so the result is the same with any number of threads. docs/kernels.md, Layers.

namespace heed::detail {

namespace {

constexpr int64_t kWeightSplits = 32;  // at most: partial sums of the weight's gradient

NormParameters rms_parameters(const at::Tensor& weight, double eps, double offset) {
  return {/*centers=*/false, weight, at::Tensor(), eps, offset};
}

template <typename T>
RmsNormGradients gradients_of(const LayerKernelsOf<T>& kernels, const at::Tensor& x,
                              const NormParameters& norm, const at::Tensor& output_gradient) {
  auto result = empty_as(x);
  const auto columns = x.size(-1), count = x.numel() / columns;
  const auto split_rows = std::max(rows_per_task(columns), ceil_div(count, kWeightSplits));
  const auto splits = ceil_div(count, split_rows);
  const auto sums = at::zeros({splits, columns}, at::CppTypeToScalarType<T>::value);
  at::parallel_for(0, splits, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const auto first = p * split_rows, last = std::min(count, first + split_rows);
      kernels.rms_norm_backward(rows_of(x, first, last), rows_of(output_gradient, first, last),
                                norm_scale<T>(norm), rows_of(result, first, last),
                                sums.template data_ptr<T>() + p * columns);
    }
  });
  return {result, sums.sum(0).to(norm.weight.scalar_type())};
}

/// The gradients by operators, which autograd can differentiate again.
RmsNormGradients differentiable_gradients(const at::Tensor& x, const NormParameters& norm,
                                          const at::Tensor& output_gradient) {
  const auto precise = compute_dtype(x.scalar_type());
  const auto& weight = norm.weight;
  const auto row = x.to(precise);
  const auto weighted = output_gradient.to(precise) * (weight.to(precise) + norm.offset);
  const auto inverse = (row.square().mean(-1, true) + norm.eps).rsqrt();
  const auto along = (row * weighted).mean(-1, true) * inverse.square();
  const auto of_weight = (output_gradient.to(precise) * row * inverse).sum_to_size(weight.sizes());
  return {(inverse * (weighted - row * along)).to(x.scalar_type()),
          of_weight.to(weight.scalar_type())};
}

struct RmsNorm : public torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps, double offset) {
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    context->saved_data["offset"] = offset;
    auto result = normalize_rows(x, rms_parameters(weight, eps, offset));
    const auto again = [eps, offset](const variable_list& sources) {
      return rms_norm(sources[0], sources[1], eps, offset);
    };
    keep_recipe(context, again, {x, weight}, result);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto eps = context->saved_data["eps"].toDouble();
    const auto offset = context->saved_data["offset"].toDouble();
    const auto found = rms_norm_gradients(saved[0], saved[1], eps, gradients[0], offset);
    return {found.x, found.weight, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  if (!kernels_normalize(x, weight)) {
    if (offset == 0.0 && x.scalar_type() == weight.scalar_type()) {
      return at::rms_norm(x, weight.sizes(), weight, eps);
    }
    // The dtype of the weight may be too coarse for weight + offset.
    const auto shifted = weight.to(compute_dtype(weight.scalar_type())) + offset;
    return at::rms_norm(x.to(shifted.scalar_type()), weight.sizes(), shifted, eps)
        .to(x.scalar_type());
  }
  const auto dense = x.contiguous();
  const auto dense_weight = weight.contiguous();
  if (!is_recorded(x, weight)) {
    return normalize_rows(dense, rms_parameters(dense_weight, eps, offset));
  }
  return RmsNorm::apply(dense, dense_weight, eps, offset);
}

c10::intrusive_ptr<Recipe> rms_norm_recipe(const at::Tensor& output) {
  return recipe_of<RmsNorm>(output);
}

RmsNormGradients rms_norm_gradients(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const at::Tensor& output_gradient, double offset) {
  const auto of_output = output_gradient.resolve_neg();
  if (at::GradMode::is_enabled() || !kernels_normalize(x, weight) || !is_plain(of_output)) {
    return differentiable_gradients(x, rms_parameters(weight, eps, offset), of_output);
  }
  const auto dense_weight = weight.contiguous();
  return with_layer_kernels(x.scalar_type(), [&](const auto& kernels) {
    return gradients_of(kernels, x.contiguous(), rms_parameters(dense_weight, eps, offset),
                        of_output.contiguous());
  });
}

}  // namespace heed::detail
