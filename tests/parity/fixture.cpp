// SPDX-License-Identifier: BSD-3-Clause
#include "fixture.h"

#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace heed::test {

std::vector<int64_t> numbers(const at::Tensor& tensor) {
  const auto own = tensor.cpu().contiguous();
  return {own.data_ptr<int64_t>(), own.data_ptr<int64_t>() + own.numel()};
}

std::string why_no_fixtures() {
  std::string reason;
  std::ifstream skipped(fixture_path("skipped"));
  std::getline(skipped, reason);
  return reason;
}

std::string fixture_path(const std::string& name) {
  return std::string(HEED_PARITY_FIXTURES) + "/" + name;
}

Fixture::Fixture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict()) {
    tensors_[entry.key().toStringRef()] = entry.value().toTensor();
  }
}

const at::Tensor& Fixture::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw std::runtime_error("the fixture holds no " + name);
  return found->second;
}

std::optional<at::Tensor> Fixture::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? std::nullopt : std::optional<at::Tensor>(found->second);
}

int64_t Fixture::number(const std::string& name) const { return (*this)[name].item<int64_t>(); }

SamplingOptions Fixture::penalties(const std::string& name) const {
  SamplingOptions options;
  if (const auto found = find(name + ".repetition_penalty")) {
    options.repetition_penalty(found->item<double>());
  }
  if (const auto found = find(name + ".no_repeat_ngram_size")) {
    options.no_repeat_ngram_size(found->item<int64_t>());
  }
  if (const auto found = find(name + ".bias_tokens")) {
    const auto tokens = numbers(*found);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto number = (*this)[name + ".bias_numbers"][static_cast<int64_t>(i)];
      options.logit_bias()[tokens[i]] = number.item<double>();
    }
  }
  return options;
}

std::vector<std::string> Fixture::cases() const {
  const std::string suffix = ".output";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    const auto end = name.rfind(suffix);
    if (end != std::string::npos && end + suffix.size() == name.size()) {
      names.push_back(name.substr(0, end));
    }
  }
  return names;
}

std::optional<at::Tensor> Fixture::mask(const std::string& name, at::Device device) const {
  const auto found = find(name + ".mask");
  return found ? std::optional<at::Tensor>(found->to(device)) : std::nullopt;
}

}  // namespace heed::test
