// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/weights.h>

#include <map>
#include <string>
#include <vector>

#include "cpu/layers/packed_weight.h"
#include "weights/formats/file_entries.h"

/// Files of weights that pack_weights has packed. A safetensors file has the tensors of such a
/// weight as NAME.values, NAME.scales and NAME.offsets, and says in its metadata how it is packed:
///
///   "heed.packed:NAME": {"format": "int4", "dtype": "BF16", "shape": [N, K], "group": 32}

namespace heed::detail {

/// The file with packed weights in place of their tensors, whose values are not read yet. Throws
/// c10::ValueError unless these fit their description.
FileEntries with_packed(FileEntries file);

/// Adds what a file has of a packed weight.
void add_packed(const std::string& name, const at::Tensor& weight, NamedTensors& tensors,
                std::map<std::string, std::string>& metadata);

/// Packed weights of a file on their way into the layers of a module.
class PackedLoads {
 public:
  /// Finds the layers for those of `names` that are packed in the file. Throws c10::ValueError,
  /// beginning with "load_weights", unless the module and the options can take them.
  PackedLoads(torch::nn::Module& module, const FileEntries& file,
              const std::vector<std::string>& names, const LoadOptions& options);

  /// Reads the weights. Throws c10::ValueError when a number makes no weight.
  void read();
  /// Gives them to the layers.
  void install();

 private:
  struct Load {
    std::string name;
    torch::nn::Module* layer;
    at::Tensor* to;
    PackedWeight weight;
  };

  torch::nn::Module& module_;
  const std::string source_;
  std::vector<Load> loads_;
};

}  // namespace heed::detail
