#pragma once

#include <heed/pack_weights.h>

#include <map>
#include <optional>
#include <string>

#include "support/command_line.h"

namespace heed::examples {

/// The option --weights of programs that run a model.
struct WeightsArgument {
  std::string name = "plain";

  /// Empty if the weights are not packed.
  std::optional<PackOptions> chosen() const {
    static const std::map<std::string, PackFormat> formats = {{"packed", PackFormat::as_is},
                                                              {"bfloat16", PackFormat::bfloat16},
                                                              {"int8", PackFormat::int8},
                                                              {"int4", PackFormat::int4}};
    const auto format = formats.find(name);
    return format == formats.end() ? std::nullopt : std::optional(PackOptions(format->second));
  }
};

inline void add_weights_option(CommandLine& app, WeightsArgument& weights) {
  app.choice("--weights", weights.name,
             "plain: as they are; packed: in the layout of products, or with fewer bits as well",
             {"plain", "packed", "bfloat16", "int8", "int4"});
}

}  // namespace heed::examples
