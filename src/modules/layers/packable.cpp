// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/packable.h"

#include <heed/module.h>

#include <utility>

namespace heed::detail {

namespace {

/// A weight of the module, or of one below it, that is packed; undefined if there is none.
at::Tensor find_packed(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) {
    if (packed_weight_of(parameter) != nullptr) return parameter;
  }
  return {};
}

}  // namespace

bool has_packed_weights(const torch::nn::Module& module) { return find_packed(module).defined(); }

at::Tensor* packable_weight(torch::nn::Module& module) {
  auto* linear = module.as<torch::nn::LinearImpl>();
  if (linear != nullptr) return is_own_layer(*linear) ? &linear->weight : nullptr;
  auto* embedding = module.as<torch::nn::EmbeddingImpl>();
  return embedding != nullptr && is_own_layer(*embedding) ? &embedding->weight : nullptr;
}

void set_packed_weight(torch::nn::Module& layer, at::Tensor& weight, PackedWeight packed) {
  weight =
      packed_tensor(std::make_shared<const PackedWeight>(std::move(packed)), weight.scalar_type());
  ParameterTable::at(layer, "weight") = weight;
}

void check_not_packed(const char* function, const torch::nn::Module& module, const char* advice) {
  HEED_CHECK(!has_packed_weights(module), "{}: weights must not be packed by pack_weights{}",
             function, advice);
}

void check_packed_stay(const torch::nn::Module& module, std::optional<at::Device> device,
                       std::optional<at::ScalarType> dtype) {
  const auto packed = find_packed(module);
  if (!packed.defined()) return;
  HEED_CHECK(!device || device->is_cpu(),
             "to: device ({}) must be the CPU for weights that are packed by pack_weights",
             device->str());
  HEED_CHECK(!dtype || *dtype == packed.scalar_type(),
             "to: dtype ({}) must be {}, that of the weights when pack_weights packed them",
             c10::toString(*dtype), c10::toString(packed.scalar_type()));
}

}  // namespace heed::detail
