// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/parameters.h"

#include <ATen/ops/empty.h>

#include <memory>

#include "core/check_memory.h"
#include "modules/layers/packable.h"

namespace heed::detail {

std::optional<UninitializedParameters::Kind>& UninitializedParameters::kind() {
  thread_local std::optional<Kind> kind;
  return kind;
}

UninitializedParameters::UninitializedParameters(const at::TensorOptions& options,
                                                 bool shapes_alone)
    : before_(kind()) {
  kind() = {options, shapes_alone};
}

UninitializedParameters::~UninitializedParameters() { kind() = before_; }

bool UninitializedParameters::are_made() { return kind().has_value(); }

at::Tensor empty_parameter(at::IntArrayRef sizes) {
  check_memory("Parameter", "sizes", sizes, at::kFloat);
  const auto& kind = UninitializedParameters::kind();
  if (!kind) return at::empty(sizes);
  // With shapes_alone, a parameter is one element that is expanded to the shape. LibTorch cannot
  // give a Linear a tensor of the meta device.
  return kind->shapes_alone ? at::empty({}, kind->options).expand(sizes)
                            : at::empty(sizes, kind->options);
}

// LibTorch's constructors draw values. For parameters without values, layers are made with one
// element and their parameters are replaced.

torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  check_memory("Linear", "weight", {out, in}, at::kFloat);
  const bool draws = !UninitializedParameters::are_made();
  const auto sizes = draws ? torch::nn::LinearOptions(in, out) : torch::nn::LinearOptions(1, 1);
  const std::shared_ptr<torch::nn::LinearImpl> linear =
      std::make_shared<Packable<torch::nn::LinearImpl>>(torch::nn::LinearOptions(sizes).bias(bias));
  if (draws) return linear;
  linear->options.in_features(in).out_features(out);
  linear->weight.set_data(empty_parameter({out, in}));
  if (bias) linear->bias.set_data(empty_parameter({out}));
  return linear;
}

torch::nn::Embedding make_embedding(int64_t count, int64_t dim) {
  check_memory("Embedding", "weight", {count, dim}, at::kFloat);
  torch::nn::EmbeddingOptions options(count, dim);
  if (UninitializedParameters::are_made()) options._weight(empty_parameter({count, dim}));
  const std::shared_ptr<torch::nn::EmbeddingImpl> embedding =
      std::make_shared<Packable<torch::nn::EmbeddingImpl>>(options);
  return embedding;
}

torch::nn::Conv2d make_patch_embedding(int64_t channels, int64_t out, int64_t size, bool bias) {
  check_memory("Conv2d", "weight", {out, channels, size, size}, at::kFloat);
  const auto options = torch::nn::Conv2dOptions(channels, out, size).stride(size).bias(bias);
  if (!UninitializedParameters::are_made()) return std::make_shared<torch::nn::Conv2dImpl>(options);
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(1, 1, 1).bias(bias));
  convolution->options.in_channels(channels).out_channels(out).kernel_size(size).stride(size);
  convolution->weight.set_data(empty_parameter({out, channels, size, size}));
  if (bias) convolution->bias.set_data(empty_parameter({out}));
  return convolution;
}

torch::nn::Conv1d make_frame_convolution(int64_t channels, int64_t out, int64_t stride) {
  constexpr int64_t kSize = 3;
  check_memory("Conv1d", "weight", {out, channels, kSize}, at::kFloat);
  const auto options = torch::nn::Conv1dOptions(channels, out, kSize).stride(stride).padding(1);
  if (!UninitializedParameters::are_made()) return std::make_shared<torch::nn::Conv1dImpl>(options);
  torch::nn::Conv1d convolution(torch::nn::Conv1dOptions(1, 1, kSize).stride(stride).padding(1));
  convolution->options.in_channels(channels).out_channels(out);
  convolution->weight.set_data(empty_parameter({out, channels, kSize}));
  convolution->bias.set_data(empty_parameter({out}));
  return convolution;
}

}  // namespace heed::detail
