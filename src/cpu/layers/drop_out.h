// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "cpu/layers/recipe.h"

namespace heed::detail {

/// Dropout of elements: each is 0 with this probability, in [0, 1), else x / (1 - probability). On
/// the CPU in one pass, with counter-based random numbers of a key that LibTorch's generator draws;
/// the backward pass draws them again, so no mask is kept.
at::Tensor drop_elements(const at::Tensor& x, double probability);

/// The recipe of an output of `drop_elements` whose input has one; else null.
c10::intrusive_ptr<Recipe> drop_out_recipe(const at::Tensor& output);

}  // namespace heed::detail
