// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/watched.h"
#include "cpu/layers/function.h"

namespace heed::detail {

/// How an output of a layer is computed again, bit for bit, from its sources: tensors that the
/// layer's own node keeps for the backward pass. A node that needs the output keeps the sources
/// instead, so that the output itself can be freed.
class Recipe : public torch::CustomClassHolder {
 public:
  /// Computes the output from its sources. It holds no tensors.
  using Compute = std::function<at::Tensor(const variable_list& sources)>;

  Recipe(Compute compute, const variable_list& sources, const at::Tensor& output)
      : compute_(std::move(compute)), data_(output.const_data_ptr()), version_(output._version()) {
    for (const auto& source : sources) sources_.emplace_back(source);
  }

  /// The sources of `output`. Empty if one is gone, or if one or the output has been changed.
  variable_list sources_of(const at::Tensor& output) const {
    if (output._version() != version_ || output.const_data_ptr() != data_) return {};
    variable_list sources;
    for (const auto& source : sources_) {
      sources.push_back(source.tensor());
      if (!sources.back().defined() || !source.is_unchanged()) return {};
    }
    return sources;
  }

  /// The output, without history.
  at::Tensor compute(const variable_list& sources) const {
    const at::NoGradGuard no_grad;
    return compute_(sources);
  }

 private:
  const Compute compute_;
  // The output, which may be gone, as it was computed.
  const void* const data_;
  const int64_t version_;
  std::vector<Watched> sources_;
};

constexpr auto kRecipe = "recipe";

/// Keeps the recipe of the output that `context` is for, so that recipe_of finds it.
inline void keep_recipe(AutogradContext* context, Recipe::Compute compute,
                        const variable_list& sources, const at::Tensor& output) {
  context->saved_data[kRecipe] =
      c10::IValue::make_capsule(c10::make_intrusive<Recipe>(std::move(compute), sources, output));
}

/// The recipe of a tensor that Layer::apply returned; null if it was another node.
template <typename Layer>
c10::intrusive_ptr<Recipe> recipe_of(const at::Tensor& output) {
  const auto& node = output.grad_fn();
  auto* own = dynamic_cast<torch::autograd::CppNode<Layer>*>(node.get());
  if (own == nullptr) return {};
  const auto found = own->ctx_.saved_data.find(kRecipe);
  if (found == own->ctx_.saved_data.end()) return {};
  return c10::static_intrusive_pointer_cast<Recipe>(found->second.toCapsule());
}

}  // namespace heed::detail
