#include "checkpoint.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <heed/weights.h>
#include <torch/nn/module.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "support/files.h"

namespace heed::examples {

namespace {

constexpr const char* kAbout = "about";  // its bytes

at::Tensor to_tensor(const std::string& text) {
  const auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

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
  bool all = actual.size() == expected.size();
  for (size_t i = 0; all && i < actual.size(); ++i) {
    all = expected[i] == -1 || actual[i] == expected[i];
  }
  return all;
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
  add(root, kAbout, to_tensor(about));
  save_weights(*root, path);
}

}  // namespace heed::examples
