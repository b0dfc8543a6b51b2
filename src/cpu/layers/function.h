// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace heed::detail {

/// The types of an autograd Function's arguments.
/// @{
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
/// @}

/// Whether autograd records a layer with these inputs, of which any may be undefined.
template <typename... Tensors>
bool is_recorded(const Tensors&... inputs) {
  return at::GradMode::is_enabled() && ((inputs.defined() && inputs.requires_grad()) || ...);
}

}  // namespace heed::detail
