// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <heed/weights.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "support/files.h"

namespace heed::examples {

namespace {

constexpr const char* kAbout = "about";  // its bytes

/// Adds a tensor to the module that its dotted name leads to.
void add(std::shared_ptr<torch::nn::Module> module, const std::string& name,
         const at::Tensor& tensor) {
  size_t begin = 0;
  for (auto end = name.find('.'); end != std::string::npos; end = name.find('.', begin)) {
    const auto part = name.substr(begin, end - begin);
    const auto children = module->named_children();
    const auto* child = children.find(part);
    module = child != nullptr
                 ? *child
                 : module->register_module(part, std::make_shared<torch::nn::Module>());
    begin = end + 1;
  }
  module->register_buffer(name.substr(begin), tensor);
}

bool fits(at::IntArrayRef actual, at::IntArrayRef expected) {
  return std::equal(actual.begin(), actual.end(), expected.begin(), expected.end(),
                    [](int64_t size, int64_t wanted) { return wanted == -1 || size == wanted; });
}

}  // namespace

Checkpoint::Checkpoint(std::string path, const Team& team) : path_(std::move(path)) {
  about_ = team.lead([&] {
    open_file(path_);
    tensors_ = read_weights(path_);
    return to_text(at(kAbout, at::kByte, {-1}));
  });
}

void Checkpoint::check(bool sound, const std::string& problem) const {
  if (!sound) throw std::runtime_error(fmt::format("cannot read {}: {}", path_, problem));
}

const at::Tensor& Checkpoint::at(const std::string& name, at::ScalarType dtype,
                                 at::IntArrayRef sizes) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), "it has no " + name + ", and is no training's state");
  const auto& tensor = found->second;
  check(tensor.scalar_type() == dtype && fits(tensor.sizes(), sizes),
        fmt::format("{} ({} [{}]) must be {} [{}]", name, c10::toString(tensor.scalar_type()),
                    fmt::join(tensor.sizes(), ", "), c10::toString(dtype), fmt::join(sizes, ", ")));
  return tensor;
}

void write_checkpoint(const NamedTensors& tensors, const std::string& about,
                      const std::string& path) {
  const auto root = std::make_shared<torch::nn::Module>();
  for (const auto& [name, tensor] : tensors) add(root, name, tensor.detach());
  add(root, kAbout, to_bytes(about));
  save_weights(*root, path);
}

}  // namespace heed::examples
