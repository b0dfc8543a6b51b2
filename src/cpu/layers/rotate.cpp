// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/rotate.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "core/direct.h"
#include "core/dtypes.h"
#include "cpu/layers/function.h"
#include "cpu/layers/tasks.h"
#include "cpu/tensor_rows.h"

// Rotary embedding of heads [B, H, L, D], in one pass over memory:
//
//   for each token (b, l), in parallel:
//     for each head h, for each pair (x, y) of its first R elements:     # cpu/isa/layers.cpp
//       x, y = x cos - y sin, y cos + x sin          # of the angle of the pair at the token
//     copy the other D - R elements
//
//   a head:   interleaved   x0 y0 x1 y1 x2 y2 | copied      R = 6
//             half split    x0 x1 x2 y0 y1 y2 | copied
//
// An element is read and written once and takes two multiplications. The gradient is the opposite
// rotation, by the same kernel with -sin. Operators compute calls that the kernel does not take.
// docs/kernels.md, Layers.

namespace heed::detail {

namespace {

/// Token l of sequence b: a row for each head.
Rows token_rows(const at::Tensor& heads, int64_t b, int64_t l) {
  return rows_at(heads, b * heads.stride(0) + l * heads.stride(2), heads.size(1), heads.stride(1));
}

template <typename T>
void rotate_tokens(const LayerKernelsOf<T>& kernels, const at::Tensor& x, const Angles& angles,
                   bool back, const at::Tensor& to) {
  const auto pairs = angles.cos.size(3), length = x.size(2);
  const auto step = angles.cos.size(0) == 1 ? 0 : length * pairs;  // from one sequence to the next
  const auto* cos = angles.cos.const_data_ptr<T>();
  const auto* sin = angles.sin.const_data_ptr<T>();
  const auto grain = rows_per_task(x.size(1) * x.size(3));
  at::parallel_for(0, x.size(0) * length, grain, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const auto b = token / length, l = token % length;
      const auto at = b * step + l * pairs;
      kernels.rotate(token_rows(x, b, l), {cos + at, sin + at, pairs, angles.interleaved, back},
                     token_rows(to, b, l));
    }
  });
}

at::Tensor rotate_on_cpu(const at::Tensor& x, const Angles& angles, bool back) {
  const auto resolved = x.is_neg() ? x.resolve_neg() : x;
  const auto from = resolved.stride(3) == 1 ? resolved : resolved.contiguous();
  auto to = empty_as(from);
  if (to.stride(3) != 1) to = empty_on_cpu(from.sizes(), from.scalar_type());
  with_layer_kernels(x.scalar_type(),
                     [&](const auto& kernels) { rotate_tokens(kernels, from, angles, back, to); });
  return to;
}

/// Reshapes [.., dim] to pairs: [.., dim / 2, 2] if interleaved, else [.., 2, dim / 2]. All
/// implementations of vmap have `reshape`.
at::Tensor as_pairs(const at::Tensor& rows, int64_t dim, bool interleaved) {
  auto sizes = rows.sym_sizes().vec();
  sizes.back() = interleaved ? dim / 2 : 2;
  sizes.emplace_back(interleaved ? 2 : dim / 2);
  return rows.reshape_symint(sizes);
}

at::Tensor rotate_by_operators(const at::Tensor& x, const Angles& angles) {
  const auto& [cos, sin, interleaved] = angles;
  const auto dim = 2 * cos.size(3);
  const auto turning = x.narrow(3, 0, dim).to(cos.scalar_type());
  const auto pairs = as_pairs(turning, dim, interleaved);
  const int64_t axis = interleaved ? 4 : 3;  // of the two elements of a pair
  const auto first = pairs.select(axis, 0), second = pairs.select(axis, 1);
  const auto turned = at::stack({first * cos - second * sin, second * cos + first * sin}, axis);
  auto result = turned.reshape_symint(turning.sym_sizes()).to(x.scalar_type());
  if (dim == x.size(3)) return result;
  return at::cat({result, x.narrow(3, dim, x.size(3) - dim)}, 3);
}

/// A rotation, by the negative angles if `back`. Its gradient is the opposite rotation, which has
/// the first one as its own gradient, so derivatives of any order work.
struct Rotate : public torch::autograd::Function<Rotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Angles& angles,
                            bool back) {
    context->save_for_backward({angles.cos, angles.sin});
    context->saved_data["interleaved"] = angles.interleaved;
    context->saved_data["back"] = back;
    return rotate_on_cpu(x, angles, back);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& gradient = gradients[0];
    const bool back = !context->saved_data["back"].toBool();
    Angles angles{saved[0], saved[1], context->saved_data["interleaved"].toBool()};
    if (calls_reach_kernels() && is_plain(gradient)) return {apply(gradient, angles, back), {}, {}};
    if (back) angles.sin = angles.sin.neg();
    return {rotate_by_operators(gradient, angles), {}, {}};
  }
};

bool kernel_takes(const at::Tensor& x, const Angles& angles) {
  const auto computed_in = compute_dtype(x.scalar_type());
  return has_kernels() && calls_reach_kernels() && is_plain(x) && is_plain(angles.cos) &&
         is_plain(angles.sin) && is_attention_dtype(x.scalar_type()) &&
         angles.cos.scalar_type() == computed_in && angles.sin.scalar_type() == computed_in &&
         !angles.cos.requires_grad() && !angles.sin.requires_grad();
}

}  // namespace

at::Tensor rotate(const at::Tensor& x, const Angles& angles) {
  if (!kernel_takes(x, angles)) return rotate_by_operators(x, angles);
  const Angles dense{angles.cos.contiguous(), angles.sin.contiguous(), angles.interleaved};
  if (!(at::GradMode::is_enabled() && x.requires_grad())) {
    return rotate_on_cpu(x, dense, /*back=*/false);
  }
  return Rotate::apply(x, dense, /*back=*/false);
}

}  // namespace heed::detail
