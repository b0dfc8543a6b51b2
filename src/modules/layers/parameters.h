#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include "modules/layers/linear.h"

/// Functions that make the parameters of new modules, and give them their first values.

namespace heed::detail {

/// While this object exists, modules that this thread makes have uninitialized parameters of this
/// dtype and device. This is for modules whose weights are loaded next. With `shapes_alone` the
/// parameters have no memory either.
class UninitializedParameters {
 public:
  explicit UninitializedParameters(const at::TensorOptions& options, bool shapes_alone = false);
  UninitializedParameters(const UninitializedParameters&) = delete;
  UninitializedParameters& operator=(const UninitializedParameters&) = delete;
  ~UninitializedParameters();

  static bool are_made();

 private:
  struct Kind {
    at::TensorOptions options;
    bool shapes_alone;
  };
  friend at::Tensor empty_parameter(at::IntArrayRef sizes);
  static std::optional<Kind>& kind();  // the innermost object of this thread

  std::optional<Kind> before_;
};

/// Makes a new parameter. Its values must be set next unless
/// `UninitializedParameters::are_made()`.
at::Tensor empty_parameter(at::IntArrayRef sizes);

/// Make layers with new parameters.
/// @{
torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias);
torch::nn::Embedding make_embedding(int64_t count, int64_t dim);
/// Makes a convolution whose stride is the size of its kernel.
torch::nn::Conv2d make_patch_embedding(int64_t channels, int64_t out, int64_t size);
/// @}

constexpr double kInitialDeviation = 0.02;  // as in GPT-2

/// Draws values from a normal distribution.
inline void draw_initial(at::Tensor& weight) {
  torch::nn::init::normal_(weight, 0.0, kInitialDeviation);
}

/// Sets the parameters of a Linear, or of a process's part of one, by `draw(whole Linear)`.
template <typename Draw>
void initialize(torch::nn::LinearImpl& linear, const Draw& draw) {
  if (auto* shard = dynamic_cast<ShardedLinearImpl*>(&linear)) {
    shard->initialize(draw);
  } else {
    draw(linear);
  }
}

/// Initializes a Linear, or a process's part of one, as LibTorch does.
inline void reset_parameters(torch::nn::Linear& linear) {
  initialize(*linear, [](torch::nn::LinearImpl& whole) { whole.reset_parameters(); });
}

/// Initializes all Linears of `module`: weights from a normal distribution, biases with 0.
inline void initialize_linears(torch::nn::Module& module) {
  for (const auto& child : module.modules()) {
    auto* linear = child->as<torch::nn::Linear>();
    if (linear == nullptr) continue;
    initialize(*linear, [](torch::nn::LinearImpl& whole) {
      draw_initial(whole.weight);
      if (whole.bias.defined()) torch::nn::init::zeros_(whole.bias);
    });
  }
}

}  // namespace heed::detail
