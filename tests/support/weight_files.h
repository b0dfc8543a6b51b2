// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/expect.h"
#include "support/temporary_folder.h"

namespace heed::test {

/// A module that is nothing but tensors.
class Box : public torch::nn::Module {
 public:
  explicit Box(const NamedTensors& tensors) : torch::nn::Module("Box") {
    for (const auto& [name, tensor] : tensors) register_buffer(name, tensor.clone());
  }
  at::Tensor operator[](const std::string& name) const { return named_buffers()[name]; }
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Files of a test's own, in a folder that goes with it.
class WeightFiles : public ::testing::Test {
 protected:
  void write(const std::string& bytes) const { write(path_, bytes); }
  static void write(const std::string& path, const std::string& bytes) { write_bytes(path, bytes); }

  /// The error of loading `path_` into a module without tensors, after "load_weights: path (...) ".
  std::string load_error(const LoadOptions& options = {}) const {
    Box nothing({});
    const auto error = value_error([&] { load_weights(nothing, path_, options); });
    const auto start = "load_weights: path (" + path_ + ") ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }

  const TemporaryFolder folder_{"weights"};
  const std::filesystem::path& directory_ = folder_.path();
  std::string path_ = directory_ / "weights";
};

}  // namespace heed::test
