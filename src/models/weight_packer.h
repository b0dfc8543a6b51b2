// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/pack_weights.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "cpu/layers/packed_weight.h"

namespace heed::detail {

/// A layer's weight, and how it is packed.
struct PackedPlace {
  std::string name;  ///< of the weight
  torch::nn::Module* layer;
  at::Tensor* weight;  ///< the layer's member
  PackedLayout layout;
};

/// Packs the weights of a module, all at once or one after the other. Errors are those of
/// pack_weights.
class WeightPacker {
 public:
  /// Finds the weights, whose numbers may be missing.
  WeightPacker(torch::nn::Module& module, const PackOptions& options);

  /// Packs the parameter `name` if it is such a weight.
  void pack(const std::string& name);
  /// Checks all weights and packs them.
  void pack_all();
  /// Makes the other parameters such that no gradients are recorded.
  void finish();

 private:
  torch::nn::Module& module_;
  std::vector<PackedPlace> places_;
};

}  // namespace heed::detail
