// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <string>

namespace heed::detail {

/// A Linear of one of heed's modules, in whose place another layer can be put.
struct LinearPlace {
  torch::nn::Module* owner;
  std::string name;           // in the owner
  torch::nn::Linear* member;  // of the owner
  bool in_block;              // whether the owner is an attention or a feed-forward layer

  torch::nn::LinearImpl& layer() const { return **member; }
  /// Puts a layer into the place.
  void put(const std::shared_ptr<torch::nn::LinearImpl>& layer) const;
};

/// The Linears of a module that heed's modules multiply by through `project`, by their names.
std::map<std::string, LinearPlace> linear_places(torch::nn::Module& module);

}  // namespace heed::detail
