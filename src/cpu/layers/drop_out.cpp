// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/drop_out.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

#include "core/direct.h"
#include "core/dtypes.h"
#include "core/random_state.h"
#include "cpu/layers/function.h"
#include "cpu/layers/recipes.h"
#include "cpu/layers/tasks.h"

// Dropout of elements, in one pass over memory:
//
//   for each block of 4096 elements, in parallel:                  # cpu/isa/layers.cpp
//     for each draw block of 64 elements: draw 64 words            # cpu/isa/philox.h
//       y = word >= threshold ? x * scale : 0
//
// A word depends only on the key of the call and on the element's place, so the backward pass draws
// it again instead of storing a mask: the gradient is the output's gradient, dropped alike.
// docs/kernels.md, Layers.

namespace heed::detail {

namespace {

/// The numbers that determine which elements are dropped.
struct Dropping {
  double probability;
  uint64_t key;
};

at::Tensor dropped_on_cpu(const at::Tensor& x, const Dropping& dropping) {
  auto result = empty_on_cpu(x.sizes(), x.scalar_type());
  for_blocks(x, [&](const auto& kernels, int64_t first, const auto& elements) {
    kernels.drop_out(elements(x), {dropping.key, first, dropout_threshold(dropping.probability)},
                     1 / (1 - dropping.probability), elements(result));
  });
  return result;
}

bool dropping_kernel_takes(const at::Tensor& x) {
  return has_kernels() && calls_reach_kernels() && is_plain(x) && x.numel() > 0 &&
         is_attention_dtype(x.scalar_type());
}

at::Tensor dropped(const at::Tensor& x, const Dropping& dropping);

/// The gradient is linear in the output's gradient, so derivatives of any order work.
struct DropOut : public torch::autograd::Function<DropOut> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const Dropping& dropping) {
    context->saved_data["probability"] = dropping.probability;
    context->saved_data["key"] = static_cast<int64_t>(dropping.key);
    auto result = dropped_on_cpu(x, dropping);
    if (const auto of_x = find_recipe(x)) {
      const auto sources = of_x->sources_of(x);
      const auto again = [of_x, dropping](const variable_list& from) {
        return dropped(of_x->compute(from), dropping);
      };
      if (!sources.empty()) keep_recipe(context, again, sources, result);
    }
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Dropping dropping = {context->saved_data["probability"].toDouble(),
                               static_cast<uint64_t>(context->saved_data["key"].toInt())};
    const auto& gradient = gradients[0];
    if (dropping_kernel_takes(gradient)) return {dropped(gradient, dropping), {}};
    const auto ones = empty_on_cpu(gradient.sizes(), gradient.scalar_type()).fill_(1);
    return {gradient * dropped_on_cpu(ones, dropping), {}};
  }
};

/// x, on the CPU, dropped, and recorded if its gradient is wanted.
at::Tensor dropped(const at::Tensor& x, const Dropping& dropping) {
  const auto dense = x.contiguous();
  return is_recorded(dense) ? DropOut::apply(dense, dropping) : dropped_on_cpu(dense, dropping);
}

}  // namespace

at::Tensor drop_elements(const at::Tensor& x, double probability) {
  if (!dropping_kernel_takes(x)) return at::dropout(x, probability, /*train=*/true);
  return dropped(x, {probability, draw_dropout_key(probability)});
}

c10::intrusive_ptr<Recipe> drop_out_recipe(const at::Tensor& output) {
  return recipe_of<DropOut>(output);
}

}  // namespace heed::detail
