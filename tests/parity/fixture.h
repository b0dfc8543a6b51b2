// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/sampling.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace heed::test {

/// The numbers of an int64 tensor.
std::vector<int64_t> numbers(const at::Tensor& tensor);

/// Empty when the fixtures could be exported.
std::string why_no_fixtures();

/// The path of a file that was exported for the tests, such as "heads/Attention.pt".
std::string fixture_path(const std::string& name);

/// The tensors that Python computed: a dict that export_model.py wrote.
class Fixture {
 public:
  explicit Fixture(const std::string& path);

  const std::map<std::string, at::Tensor>& all() const { return tensors_; }
  const at::Tensor& operator[](const std::string& name) const;
  std::optional<at::Tensor> find(const std::string& name) const;
  int64_t number(const std::string& name) const;
  /// The changes of scores that are options of a case: its NAME.repetition_penalty and others.
  SamplingOptions penalties(const std::string& name) const;

  /// The names before ".output".
  std::vector<std::string> cases() const;
  /// The mask of a case, if it has one.
  std::optional<at::Tensor> mask(const std::string& name, at::Device device) const;

 private:
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace heed::test
