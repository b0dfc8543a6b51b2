#pragma once

#include <heed/attend.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace heed {

/// Options of `Attention` and `AttentionV1`.
struct HEED_API AttentionOptions {
  /// The options without a default.
  /* implicit */ AttentionOptions(int64_t emb_dim) : emb_dim_(emb_dim) {}
  /// E, the size of the input's and the output's last dimension.
  TORCH_ARG(int64_t, emb_dim);
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  TORCH_ARG(double, dropout) = 0.1;
};

/// Single-head self-attention with separate query, key and value projections.
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1.
///
/// Parameters: fc_q, fc_k, fc_v, each a Linear(E, E).
class HEED_API AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit AttentionImpl(const AttentionOptions& options);
  /// With these options, and the others at their defaults.
  explicit AttentionImpl(int64_t emb_dim, double dropout = 0.1);

  /// Builds the projections anew. Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Draws the parameters anew.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Returns {output [B, L, E], weights [B, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) const;

  /// As given at construction.
  AttentionOptions options;
  /// The layers named above.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_k{nullptr}, fc_v{nullptr};
  /// @}

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())})
};
TORCH_MODULE(Attention);

/// `Attention` with the three projections packed into one matrix product.
///
/// Parameters: qkv, a Linear(E, 3E) whose rows are those of fc_q, fc_k and fc_v, in this order.
class HEED_API AttentionV1Impl : public torch::nn::Cloneable<AttentionV1Impl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit AttentionV1Impl(const AttentionOptions& options);
  /// With these options, and the others at their defaults.
  explicit AttentionV1Impl(int64_t emb_dim, double dropout = 0.1);

  /// Builds the projection anew. Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Draws the parameters anew.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Returns {output [B, L, E], weights [B, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) const;

  /// As given at construction.
  AttentionOptions options;
  /// The layer named above.
  torch::nn::Linear qkv{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())})
};
TORCH_MODULE(AttentionV1);

}  // namespace heed
