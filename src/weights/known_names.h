// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/named_tensors.h>

#include <optional>
#include <string>
#include <vector>

namespace heed::detail {

/// A map of name_maps.h that reads the names of a file.
struct KnownNames {
  std::string map;     // as C++ has it: "name_maps::llama()"
  std::string module;  // the module that takes it: "a Decoder"
  std::string prefix;  // LoadOptions::prefix that goes with it
  bool is_family;      // of models that load_pretrained makes
};

/// Recognizes names of published models, of LibTorch's transformers and of tutorials. `missing` are
/// the names that the module wants: they tell whether it is a model, a block or an attention.
std::optional<KnownNames> known_names(const NamedTensors& file,
                                      const std::vector<std::string>& missing);

/// The program that has quantized the weights of a file, by its names: "GPTQ or AWQ"; none if there
/// is none.
std::optional<std::string> known_quantization(const NamedTensors& file);

}  // namespace heed::detail
