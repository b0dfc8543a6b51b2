// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/utils.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "support/expect.h"
#include "support/seeds.h"
#include "support/temporary_folder.h"

/// Tensors in archives of TorchScript, and the fixture of the tests that load them.

namespace heed::test {

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

/// Tensors in nested TorchScript modules, by dotted name.
inline torch::jit::Module script_module(const std::string& name, const Tensors& parameters,
                                        const Tensors& buffers) {
  torch::jit::Module module(c10::QualifiedName("__torch__." + name));
  std::map<std::string, std::pair<Tensors, Tensors>> children;
  const auto split = [](const std::string& key) {
    const auto dot = key.find('.');
    return std::pair(key.substr(0, dot), key.substr(dot + 1));
  };
  for (const auto& item : parameters) {
    const auto [child, rest] = split(item.key());
    if (rest == item.key()) {
      module.register_parameter(rest, item.value().detach(), /*is_buffer=*/false);
    } else {
      children[child].first.insert(rest, item.value());
    }
  }
  for (const auto& item : buffers) {
    const auto [child, rest] = split(item.key());
    if (rest == item.key()) {
      module.register_buffer(rest, item.value());
    } else {
      children[child].second.insert(rest, item.value());
    }
  }
  for (const auto& [child, tensors] : children) {
    module.register_module(child, script_module(name + "_" + child, tensors.first, tensors.second));
  }
  return module;
}

inline Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const auto& item : tensors) result.insert(item.key(), item.value().detach().clone());
  return result;
}

inline void expect_equal_tensors(const Tensors& actual, const Tensors& expected) {
  EXPECT_EQ(actual.keys(), expected.keys());
  for (const auto& item : expected) {
    const auto& tensor = actual[item.key()];
    EXPECT_TRUE(tensor.equal(item.value().to(tensor.device()))) << item.key();
  }
}

/// Files in a folder of a test, whose tensors `save` writes as a TorchScript archive.
class Weights : public ::testing::Test {
 protected:
  Weights() { torch::manual_seed(moved(13)); }

  void save(const Tensors& parameters, const Tensors& buffers = Tensors()) const {
    script_module("Saved", parameters, buffers).save(path_);
  }

  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  std::string load_error(torch::nn::Module& module, const LoadOptions& options = {}) const {
    return value_error([&] { load_weights(module, path_, options); });
  }

  const TemporaryFolder folder_{"weights"};
  const std::filesystem::path& directory_ = folder_.path();
  std::string path_ = directory_ / "weights.pt";
};

}  // namespace heed::test
