#pragma once

#include <heed/decoder.h>
#include <heed/image_encoder.h>
#include <heed/name_maps.h>
#include <heed/text_encoder.h>

#include <string>
#include <variant>

namespace heed::detail {

/// A model as a config.json describes it.
struct Blueprint {
  std::variant<DecoderOptions, TextEncoderOptions, ImageEncoderOptions> options;
  NameMap names;  // of the model's weights
};

/// Reads a config.json. Throws c10::ValueError that names its path, the field and its value where
/// one is not understood.
Blueprint read_blueprint(const std::string& config_path);

}  // namespace heed::detail
