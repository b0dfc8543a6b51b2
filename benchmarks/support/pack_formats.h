// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/pack_weights.h>
#include <heed/pretrained.h>

#include <map>
#include <stdexcept>
#include <string>

namespace heed::bench {

/// Returns how `load_pretrained` makes a model in a FORMAT of models.cpp.
inline PretrainedOptions pretrained_options(const std::string& format) {
  static const std::map<std::string, PackOptions> formats = {
      {"as_is", PackFormat::as_is},
      {"float32", PackFormat::float32},
      {"bfloat16", PackFormat::bfloat16},
      {"int8", PackFormat::int8},
      {"int4", PackFormat::int4},
      {"int8_activations", PackOptions(PackFormat::int8).quantize_activations(true)},
      {"int4_activations", PackOptions(PackFormat::int4).quantize_activations(true)},
  };
  PretrainedOptions options;
  if (format == "unpacked") return options;
  const auto found = formats.find(format);
  if (found == formats.end()) {
    throw std::invalid_argument("FORMAT (" + format +
                                ") must be one of those that models.cpp names");
  }
  return options.weights(found->second);
}

}  // namespace heed::bench
