// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace heed::examples {

/// The interface of an image classifier with any attention.
class DigitClassifier : public torch::nn::Module {
 public:
  /// images [B, 8, 8]; returns scores [B, 10].
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// Returns what the last block attends to, one map for each head: [B, H, 8, 8].
  virtual at::Tensor attention_maps(const at::Tensor& images) = 0;

  /// The names of a map's rows and columns.
  virtual std::string map_rows() const = 0;
  virtual std::string map_columns() const = 0;
};

/// Makes a classifier. `attention` is "attention", "attention_v1", "multi_head" or "group_query",
/// for this attention over an image's rows, or "vision_transformer", for attention over its
/// patches.
std::shared_ptr<DigitClassifier> make_digit_classifier(const std::string& attention);

}  // namespace heed::examples
