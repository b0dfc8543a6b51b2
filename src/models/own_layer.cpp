// SPDX-License-Identifier: BSD-3-Clause
#include "models/own_layer.h"

#include "core/checks.h"

namespace heed::detail {

torch::nn::AnyModule make_own_layer(const char* function, const char* option,
                                    const LayerFactory& make) {
  HEED_CHECK(make, "{}: {} must be a function that makes a layer, not an empty one", function,
             option);
  auto layer = make();
  HEED_CHECK(!layer.is_empty(), "{}: {} must return a layer, not an empty AnyModule", function,
             option);
  return layer;
}

at::Tensor apply_own_layer(const char* function, const char* option,
                           const torch::nn::AnyModule& layer, const at::Tensor& x) {
  auto own = layer;  // the module itself is shared
  auto output = own.forward(x);
  HEED_CHECK(output.defined() && output.sizes() == x.sizes(),
             "{}: {} must return the shape of its input {}; it returned {}", function, option,
             shape(x), shape(output));
  return output;
}

}  // namespace heed::detail
