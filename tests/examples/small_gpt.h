// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "language/codec.h"
#include "language/corpus.h"
#include "language/gpt.h"
#include "language/team.h"
#include "language/trainer.h"
#include "support/temporary_folder.h"

/// A small GPT of bytes, its training, and the fixture of their tests.

namespace heed::examples {

/// Files of a test's own, in a folder that goes with it, and a team of one process.
class Language : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  const test::TemporaryFolder own_folder_{"language"};
  const std::filesystem::path& folder_ = own_folder_.path();
  const std::unique_ptr<Team> team = make_team({});
};

inline GptOptions small_options() {
  GptOptions options;
  options.layers = 2;
  options.width = 32;
  options.heads = 4;
  options.groups = 2;
  options.context = 16;
  return options;
}

inline TrainedModel trained_model(double dropout = 0.0) {
  return {[=] { return make_gpt(small_options(), dropout); }, small_options().context};
}

inline TokenCorpus bytes_of(const std::string& training, const std::string& held_out) {
  return encode({{training}, {held_out}}, *byte_codec());
}

}  // namespace heed::examples
