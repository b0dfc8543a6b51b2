#pragma once

#include <torch/csrc/autograd/custom_function.h>

namespace heed::detail {

/// The types of an autograd Function's arguments.
/// @{
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
/// @}

}  // namespace heed::detail
