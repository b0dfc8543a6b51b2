// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "cpu/isa/layers.h"
#include "cpu/layers/recipe.h"

namespace heed::detail {

/// silu(gate) * up, of the same shape, or what `form` makes of it; on the CPU in one pass.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, const SwiGluForm& form = {});

/// The recipe of an output of `swiglu`; null if the tensor is none, or if no kernel computed it.
c10::intrusive_ptr<Recipe> swiglu_recipe(const at::Tensor& output);

}  // namespace heed::detail
