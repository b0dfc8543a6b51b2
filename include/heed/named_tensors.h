// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <map>
#include <string>
#include <utility>

namespace heed {

/// Tensors by name, as in a file or a module: a std::map whose `at` says which names are nearest.
///
/// @code
/// heed::NamedTensors tensors = heed::read_weights("attention.safetensors");
/// std::cout << tensors.at("fc_q.weight").sizes() << '\n';
/// @endcode
struct HEED_API NamedTensors : std::map<std::string, at::Tensor> {
  using std::map<std::string, at::Tensor>::map;
  /// No tensors, or those of a std::map.
  /// @{
  NamedTensors() = default;
  /* implicit */ NamedTensors(std::map<std::string, at::Tensor> tensors)
      : map(std::move(tensors)) {}
  /// @}

  /// The tensor of this name. Throws c10::ValueError when there is none: the error shows similar
  /// names, and names with a prefix before this one.
  /// @{
  at::Tensor& at(const std::string& name);
  const at::Tensor& at(const std::string& name) const;
  /// @}
};

}  // namespace heed
