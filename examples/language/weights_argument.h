// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/pack_weights.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "support/command_line.h"

namespace heed::examples {

/// The options --weights and --quantize-activations of programs that run a model, or train an
/// adapter of one.
struct WeightsArgument {
  std::string name = "plain";
  bool quantize_activations = false;

  /// Empty if the weights are not packed.
  std::optional<PackOptions> chosen() const {
    if (quantize_activations && name != "int8" && name != "int4") {
      throw std::invalid_argument("--quantize-activations needs --weights int8 or int4");
    }
    static const std::map<std::string, PackFormat> formats = {{"packed", PackFormat::as_is},
                                                              {"bfloat16", PackFormat::bfloat16},
                                                              {"int8", PackFormat::int8},
                                                              {"int4", PackFormat::int4}};
    const auto format = formats.find(name);
    if (format == formats.end()) return std::nullopt;
    return PackOptions(format->second).quantize_activations(quantize_activations);
  }
};

inline void add_weights_option(CommandLine& app, WeightsArgument& weights) {
  app.choice("--weights", weights.name,
             "plain: as they are; packed: in the layout of products, or with fewer bits as well",
             {"plain", "packed", "bfloat16", "int8", "int4"});
}

inline void add_packing_options(CommandLine& app, WeightsArgument& weights) {
  add_weights_option(app, weights);
  app.add_flag("--quantize-activations", weights.quantize_activations,
               "with --weights int8 or int4: round the inputs of products to 8 bits too, for long "
               "prompts and many sequences");
}

}  // namespace heed::examples
