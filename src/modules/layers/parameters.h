// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorOptions.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "modules/layers/stand_in.h"

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
torch::nn::Conv2d make_patch_embedding(int64_t channels, int64_t out, int64_t size, bool bias);
/// Makes a convolution over three frames, with a padding of 1.
torch::nn::Conv1d make_frame_convolution(int64_t channels, int64_t out, int64_t stride);
/// @}

/// Calls `convert`, and gives a buffer its dtype and values back, which a conversion would round.
template <typename Convert>
void keep_values(at::Tensor& buffer, const Convert& convert) {
  const auto exact = buffer.defined() ? buffer.detach() : at::Tensor();
  convert();
  if (exact.defined()) buffer.set_data(exact.to(buffer.device()));
}

constexpr double kInitialDeviation = 0.02;  // as in GPT-2

/// Draws values from a normal distribution.
inline void draw_initial(at::Tensor& weight) {
  torch::nn::init::normal_(weight, 0.0, kInitialDeviation);
}

/// Sets the parameters of a Linear by `draw(whole Linear)`. One of another process's expert is
/// empty: then the numbers are drawn all the same, so that later ones are those of one process.
template <typename Draw>
void initialize(torch::nn::LinearImpl& linear, const Draw& draw) {
  if (auto* own = stand_in_of(linear)) {
    own->initialize(draw);
  } else if (linear.weight.numel() == 0) {
    torch::nn::LinearImpl whole(linear);
    const auto out = whole.options.out_features();
    whole.weight = linear.weight.new_empty({out, whole.options.in_features()});
    if (linear.bias.defined()) whole.bias = linear.bias.new_empty({out});
    draw(whole);
  } else {
    draw(linear);
  }
}

/// Initializes an Embedding from a normal distribution.
inline void initialize_embedding(torch::nn::EmbeddingImpl& embedding) {
  if (auto* own = stand_in_of(embedding)) {
    own->initialize(draw_initial);
  } else {
    draw_initial(embedding.weight);
  }
}

/// Initializes a Linear as LibTorch does.
inline void reset_parameters(torch::nn::Linear& linear) {
  initialize(*linear, [](torch::nn::LinearImpl& whole) { whole.reset_parameters(); });
}

/// Initializes all Linears of `module`: weights from a normal distribution, biases with 0. The
/// weights of `scaled` are multiplied by `scale`.
inline void initialize_linears(torch::nn::Module& module,
                               const std::vector<const torch::nn::LinearImpl*>& scaled = {},
                               double scale = 1.0) {
  for (const auto& child : module.modules()) {
    auto* linear = child->as<torch::nn::Linear>();
    if (linear == nullptr) continue;
    const bool is_scaled = std::count(scaled.begin(), scaled.end(), linear) > 0;
    initialize(*linear, [&](torch::nn::LinearImpl& whole) {
      const at::NoGradGuard no_grad;
      draw_initial(whole.weight);
      if (is_scaled) whole.weight.mul_(scale);
      if (whole.bias.defined()) torch::nn::init::zeros_(whole.bias);
    });
  }
}

}  // namespace heed::detail
