// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <variant>

#include "models/pretrained/blueprint.h"
#include "support/weight_files.h"

namespace heed::test {

/// A config.json of a test's own.
class PretrainedFiles : public WeightFiles {
 protected:
  PretrainedFiles() { path_ = directory_ / "config.json"; }

  detail::Blueprint read(const std::string& json) const {
    write(json);
    return detail::read_blueprint(path_);
  }

  /// `fields` without braces, with a comma at the end or empty.
  detail::Blueprint family(const std::string& type, const std::string& fields = "") const {
    return read("{" + fields + R"("model_type": ")" + type + "\"}");
  }
  DecoderOptions decoder(const std::string& type, const std::string& fields = "") const {
    return std::get<DecoderOptions>(family(type, fields).options);
  }
  TextEncoderOptions text_encoder(const std::string& type, const std::string& fields = "") const {
    return std::get<TextEncoderOptions>(family(type, fields).options);
  }

  /// The error of reading a config.json with this text, after the path.
  std::string error_of(const std::string& json) const {
    const auto error = value_error([&] { read(json); });
    const auto start = path_ + ": ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }
  std::string error(const std::string& type, const std::string& fields) const {
    return error_of("{" + fields + R"("model_type": ")" + type + "\"}");
  }
};

}  // namespace heed::test
