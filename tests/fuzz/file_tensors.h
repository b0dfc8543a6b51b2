// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/name_maps.h>
#include <heed/named_tensors.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend_case.h"

namespace heed::fuzz {

/// A tensor of a module, and what a file calls it.
struct FileTensor {
  std::string name, in_file;
  at::Tensor value;
  bool is_parameter = false;
};

/// The tensors of a module that is saved, with names that are plain or drawn, and the map that a
/// file's names need if they are others.
struct FileTensors {
  std::vector<FileTensor> tensors;
  NameMap map;

  /// Modules with these tensors, or with zeros in their place, under the parts of their names.
  std::shared_ptr<torch::nn::Module> module(bool zeros) const;
  /// The values by their names in the file.
  NamedTensors in_file() const;
};

FileTensors draw_file_tensors(const Case& c);

/// Whether a file of the case's format holds them; nothing if the format's grammar decides.
std::optional<bool> fits_format(const Case& c, const FileTensors& tensors);

}  // namespace heed::fuzz
