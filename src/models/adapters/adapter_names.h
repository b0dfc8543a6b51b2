// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/name_maps.h>
#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weights/translation.h"

namespace heed::detail {

/// The tensors that a model has in the files of another program, by their names there, and of which
/// of the module's tensors each is made. Adapters are left out.
class AdapterNames {
 public:
  /// `source` is the config.json, or its folder, that the module was made from; without it, the
  /// names are the module's own. Throws c10::ValueError when it describes another model.
  AdapterNames(const torch::nn::Module& module, const std::optional<std::string>& source);

  const std::map<std::string, Composition>& all() const { return all_; }
  /// The entry of a tensor, whose name may have another spelling than in `all`; null if the module
  /// has no such tensor.
  const std::pair<const std::string, Composition>* find(const std::string& theirs) const;
  /// Whether another tensor of the file is made of the same tensors.
  bool is_tied(const Composition& composition) const;

 private:
  NameMap map_;
  std::map<std::string, Composition> all_;
  std::map<std::string, std::string> by_ours_;  // their names, by the first of the module's
};

/// The parts of their tensor that belong to each of the module's tensors, which have `rows` rows. A
/// stack is as in the file; others are not transposed.
std::vector<at::Tensor> parts_of(const Composition& composition, const at::Tensor& whole,
                                 const std::vector<int64_t>& rows);

}  // namespace heed::detail
