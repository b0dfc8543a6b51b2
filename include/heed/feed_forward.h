// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <heed/module.h>
#include <torch/arg.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string_view>

namespace heed {

/// The activation between the two projections of a feed-forward layer. The gated kinds multiply the
/// activation of a gate by a second projection. Shazeer 2020 (arXiv:2002.05202).
enum class Activation {
  relu,          ///< max(x, 0)
  gelu,          ///< x * P(X <= x) for a normal X, computed exactly
  gelu_tanh,     ///< GPT-2's approximation of gelu
  silu,          ///< x * sigmoid(x)
  swiglu,        ///< gated by silu
  geglu,         ///< gated by gelu
  geglu_tanh,    ///< gated by gelu_tanh
  reglu,         ///< gated by relu
  tanh,          ///< the hyperbolic tangent, in heads of classifiers
  gelu_sigmoid,  ///< x * sigmoid(1.702 x), CLIP's approximation of gelu
};

/// Returns the activation's name, such as "swiglu".
HEED_API std::string_view to_string(Activation activation);

/// Options of `FeedForward`.
struct HEED_API FeedForwardOptions {
  /// Required options.
  /* implicit */ FeedForwardOptions(int64_t emb_dim) : emb_dim_(emb_dim) {}
  HEED_NO_BOOL(FeedForwardOptions);
  /// E.
  HEED_NUMBER_ARG(int64_t, emb_dim);
  /// F, the size of the hidden layer. The default is 4 E; for gated kinds, which have a third
  /// matrix, it is 8 E / 3 rounded up to a multiple of 8.
  HEED_NUMBER_ARG(std::optional<int64_t>, hidden_dim) = std::nullopt;
  /// The activation between the two projections.
  TORCH_ARG(Activation, activation) = Activation::gelu;
  /// Whether the projections add biases.
  TORCH_ARG(bool, bias) = true;
  /// Probability in [0, 1) of dropping an element of the hidden layer, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// The hidden layer of swiglu is g * sigmoid(swiglu_beta * g) * (u + swiglu_offset): g is
  /// fc_gate(x), clamped to at most swiglu_limit, and u is fc_in(x), clamped to both sides of 0.
  /// The limit must be above 0; by default there is none.
  /// @{
  HEED_NUMBER_ARG(double, swiglu_beta) = 1.0;
  HEED_NUMBER_ARG(std::optional<double>, swiglu_limit) = std::nullopt;
  HEED_NUMBER_ARG(double, swiglu_offset) = 0.0;
  /// @}
};

/// The feed-forward layer of a transformer: fc_out(activation(fc_in(x))), or, for gated kinds,
/// fc_out(activation(fc_gate(x)) * fc_in(x)). Vaswani et al. 2017 (arXiv:1706.03762), section 3.3.
///
/// @code
/// auto options = heed::FeedForwardOptions(64).activation(heed::Activation::swiglu);
/// heed::FeedForward layer(options);
/// auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
/// @endcode
///
/// Parameters: fc_in and, for gated kinds, fc_gate, each a Linear(E, F); fc_out, a Linear(F, E).
///
/// A subclass may override `forward`, and stand in the place of a block's feed_forward:
///
/// @code
/// std::shared_ptr<heed::FeedForwardImpl> mine = std::make_shared<Doubled>(/*emb_dim=*/64);
/// block->feed_forward = block->replace_module("feed_forward", mine);
/// @endcode
class HEED_API FeedForwardImpl : public Cloneable<FeedForwardImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit FeedForwardImpl(const FeedForwardOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., E]; returns the same shape.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  virtual at::Tensor forward(const at::Tensor& x);

  /// Returns a copy. Throws c10::ValueError for a subclass, and so does `clone` of a module that
  /// holds one: the copy would be a plain FeedForward.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const final;

  /// The options given at construction.
  FeedForwardOptions options;
  /// The layers named above; fc_gate is empty unless the activation is gated.
  /// @{
  torch::nn::Linear fc_in{nullptr}, fc_gate{nullptr}, fc_out{nullptr};
  /// @}
};
TORCH_MODULE(FeedForward);

}  // namespace heed
