// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/functional.h>

#include <vector>

#include "core/direct.h"
#include "cpu/layers/linear.h"

namespace heed::detail {

/// An uninitialized tensor for each layer's result.
inline std::vector<at::Tensor> empty_outputs(const at::Tensor& input,
                                             const std::vector<LinearParameters>& layers) {
  auto sizes = input.sizes().vec();
  return c10::fmap(layers, [&](const auto& layer) {
    sizes.back() = layer.weight.size(0);
    return empty_on_cpu(sizes, input.scalar_type());
  });
}

}  // namespace heed::detail
