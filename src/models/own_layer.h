// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/transformer.h>
#include <torch/nn/modules/container/any.h>

namespace heed::detail {

/// Makes a layer of the user's. Errors name `function` and the option that has the factory.
torch::nn::AnyModule make_own_layer(const char* function, const char* option,
                                    const LayerFactory& make);

/// Applies a layer of the user's, which must keep the shape of x.
at::Tensor apply_own_layer(const char* function, const char* option,
                           const torch::nn::AnyModule& layer, const at::Tensor& x);

}  // namespace heed::detail
