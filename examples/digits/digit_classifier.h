#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace heed::examples {

/// A classifier of images, whichever attention it holds.
class DigitClassifier : public torch::nn::Module {
 public:
  /// images [B, 8, 8]; returns scores [B, 10].
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// What the last block looks at, as a map for each of its heads: [B, H, 8, 8].
  virtual at::Tensor attention_maps(const at::Tensor& images) = 0;

  /// What a map's rows and columns are.
  virtual std::string map_rows() const = 0;
  virtual std::string map_columns() const = 0;
};

/// A classifier by the name of its attention, "attention", "attention_v1", "multi_head" or
/// "group_query", over an image's rows; or "vision_transformer", over its patches.
std::shared_ptr<DigitClassifier> make_digit_classifier(const std::string& attention);

}  // namespace heed::examples
