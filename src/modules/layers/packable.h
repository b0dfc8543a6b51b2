// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

#include "core/error.h"
#include "cpu/layers/packed_weight.h"

namespace heed::detail {

/// Reaches the table of a module's parameters, in which LibTorch's modules cannot replace any.
struct ParameterTable : public torch::nn::Module {
  static at::Tensor& at(torch::nn::Module& module, const std::string& name) {
    return (module.*(&ParameterTable::parameters_))[name];
  }
};

/// LibTorch's Linear or Embedding, as heed's modules have them. It can be cloned when its weight is
/// packed, which LibTorch's cannot: the clone has the same packed weight, which nobody changes.
template <typename Layer>
class Packable final : public Layer {
 public:
  using Layer::Layer;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    if (packed_weight_of(this->weight) == nullptr) return Layer::clone(device);
    HEED_CHECK(!device || device->is_cpu(), "clone: device ({}) must be the CPU for packed weights",
               device->str());
    auto copy = std::make_shared<Layer>(static_cast<const Layer&>(*this));
    for (const auto& parameter : this->named_parameters(/*recurse=*/false)) {
      if (parameter.key() == "weight") continue;
      const auto values = parameter.value().detach().clone();
      ParameterTable::at(*copy, parameter.key()) = values;
      if constexpr (std::is_same_v<Layer, torch::nn::LinearImpl>) copy->bias = values;
    }
    return copy;
  }
};

/// Whether a layer is LibTorch's own, not one of a subclass that computes in its own way.
template <typename Layer>
bool is_own_layer(const Layer& layer) {
  return typeid(layer) == typeid(Packable<Layer>) || typeid(layer) == typeid(Layer);
}

/// Whether a weight of the module or of one below it is packed.
bool has_packed_weights(const torch::nn::Module& module);

/// The weight of a module that is LibTorch's own Linear or Embedding; null for other modules.
at::Tensor* packable_weight(torch::nn::Module& module);

/// Gives a layer a packed weight in place of its own, `weight`, whose dtype products keep.
void set_packed_weight(torch::nn::Module& layer, at::Tensor& weight, PackedWeight packed);

}  // namespace heed::detail
