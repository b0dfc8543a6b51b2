// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "cpu/layers/recipe.h"

namespace heed::detail {

/// LibTorch's layer_norm over the last dimension [D]. `bias` may be undefined.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

/// The recipe of an output of `layer_norm`; null if the tensor is none, or if it has another node.
c10::intrusive_ptr<Recipe> layer_norm_recipe(const at::Tensor& output);

}  // namespace heed::detail
