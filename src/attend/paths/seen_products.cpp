// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/seen_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "core/dtypes.h"
#include "core/plain.h"
#include "cpu/layers/function.h"

namespace heed::detail {

namespace {

at::Tensor transposed(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.transpose(-2, -1) : tensor;
}

at::Tensor sum(const at::Tensor& weights, const at::Tensor& values, const at::Tensor& seen) {
  auto product = at::matmul(weights, values);
  if (are_finite(product)) return product;
  const auto own = at::where(seen, weights, 0.0);
  const auto finite = at::isfinite(values.detach());
  auto result = at::matmul(own, at::where(finite, values, 0.0));
  const auto others = at::where(finite, 0.0, values);
  const auto rows = finite.bitwise_not().any(-1).flatten(0, -2).any(0).nonzero();
  for (int64_t n = 0; n < rows.size(0); ++n) {
    const auto row = rows[n].item<int64_t>();
    result = result + at::where(seen.narrow(-1, row, 1),
                                own.narrow(-1, row, 1) * others.narrow(-2, row, 1), 0.0);
  }
  return result;
}

at::Tensor products(const at::Tensor& left, const at::Tensor& right, const at::Tensor& seen) {
  auto result = at::matmul(left, transposed(right));
  if (are_finite(left) && are_finite(right)) return result;
  return at::where(seen, result, 0.0).contiguous();  // softmax in place needs contiguous scores
}

struct SumOfSeen : public torch::autograd::Function<SumOfSeen> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weights,
                            const at::Tensor& values, const at::Tensor& seen) {
    context->save_for_backward({weights, values, seen});
    return sum(weights, values, seen);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& gradient = gradients[0];
    return {products_of_seen(gradient, saved[1], saved[2]),
            sum_of_seen(transposed(saved[0]), gradient, transposed(saved[2])), at::Tensor()};
  }
};

struct ProductsOfSeen : public torch::autograd::Function<ProductsOfSeen> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& left,
                            const at::Tensor& right, const at::Tensor& seen) {
    context->save_for_backward({left, right, seen});
    return products(left, right, seen);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& gradient = gradients[0];
    return {sum_of_seen(gradient, saved[1], saved[2]),
            sum_of_seen(transposed(gradient), saved[0], transposed(saved[2])), at::Tensor()};
  }
};

/// Whether hidden rows can be checked for NaN: `seen` is known, and no transform such as a vmap
/// hides the numbers.
bool can_look(const at::Tensor& a, const at::Tensor& b, const at::Tensor& seen) {
  return seen.defined() && calls_reach_kernels() && is_unwrapped(a) && is_unwrapped(b);
}

/// Whether autograd records a product of a and b, in reverse mode only.
bool is_recorded(const at::Tensor& a, const at::Tensor& b) {
  return at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad()) &&
         !has_tangent(a) && !has_tangent(b);
}

}  // namespace

bool are_finite(const at::Tensor& tensor) {
  // If the sum is finite, so are all terms. A sum takes a fourth of the passes over memory that
  // isfinite takes.
  const auto numbers = tensor.detach();
  const auto sum = at::sum(numbers, compute_dtype(numbers.scalar_type())).item<double>();
  return std::isfinite(sum) || at::isfinite(numbers).all().item<bool>();
}

at::Tensor sum_of_seen(const at::Tensor& weights, const at::Tensor& values,
                       const at::Tensor& seen) {
  if (!can_look(weights, values, seen)) return at::matmul(weights, values);
  return is_recorded(weights, values) ? SumOfSeen::apply(weights, values, seen)
                                      : sum(weights, values, seen);
}

at::Tensor products_of_seen(const at::Tensor& left, const at::Tensor& right,
                            const at::Tensor& seen) {
  if (!can_look(left, right, seen)) return at::matmul(left, transposed(right));
  return is_recorded(left, right) ? ProductsOfSeen::apply(left, right, seen)
                                  : products(left, right, seen);
}

}  // namespace heed::detail
