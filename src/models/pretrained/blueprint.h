#pragma once

#include <heed/decoder.h>
#include <heed/image_encoder.h>
#include <heed/name_maps.h>
#include <heed/text_encoder.h>

#include <optional>
#include <string>
#include <variant>

namespace heed::detail {

/// A model that a config.json describes beside others, which heed leaves out; and how a folder of
/// its own describes it.
struct ModelPart {
  std::string field;       // of the config.json: the object with the model's fields
  std::string model_type;  // in a folder of its own
  bool tied_head;          // the model's tie_word_embeddings, which is not in the object
  NameMap names;           // of the model's weights in a folder of its own
};

/// A model as a config.json describes it.
struct Blueprint {
  std::variant<DecoderOptions, TextEncoderOptions, ImageEncoderOptions> options;
  NameMap names;                                 // of the model's weights
  std::optional<ModelPart> part = std::nullopt;  // none if the model is described alone
};

/// Reads a config.json. Throws c10::ValueError that names its path, the field and its value where
/// one is not understood.
Blueprint read_blueprint(const std::string& config_path);

}  // namespace heed::detail
