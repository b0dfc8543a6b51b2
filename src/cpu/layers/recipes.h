// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/layers/drop_out.h"
#include "cpu/layers/layer_norm.h"
#include "cpu/layers/rms_norm.h"
#include "cpu/layers/swiglu.h"

namespace heed::detail {

/// The recipe of a tensor that one of heed's layers computed; null if there is none.
inline c10::intrusive_ptr<Recipe> find_recipe(const at::Tensor& output) {
  for (const auto find : {rms_norm_recipe, swiglu_recipe, layer_norm_recipe, drop_out_recipe}) {
    if (auto found = find(output)) return found;
  }
  return {};
}

}  // namespace heed::detail
