// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>

namespace heed {

/// How a loss is made of the losses of rows.
enum class LossReduction {
  mean,  ///< their mean, weighted by `class_weight` of the targets
  sum,   ///< their sum
  none,  ///< the losses [N] themselves; those of ignored rows are 0
};

/// Options of `linear_cross_entropy`.
struct HEED_API LinearCrossEntropyOptions {
  /// [V], floating: added to the scores of each row. May require grad.
  TORCH_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  /// [V], floating: the weights of classes in the loss; all 1 by default.
  TORCH_ARG(std::optional<at::Tensor>, class_weight) = std::nullopt;
  /// Rows with this target count for nothing, and are not computed.
  HEED_NUMBER_ARG(int64_t, ignore_index) = -100;
  /// The share in [0, 1] of a target's probability that all classes get in equal parts. Szegedy et
  /// al. 2015 (arXiv:1512.00567).
  HEED_NUMBER_ARG(double, label_smoothing) = 0.0;
  /// At least 0: z_loss * logsumexp(scores)^2 is added to each row's loss; the mean of this term is
  /// over the rows that are not ignored, and not weighted. Chowdhery et al. 2022
  /// (arXiv:2204.02311).
  HEED_NUMBER_ARG(double, z_loss) = 0.0;
  /// Limits the scores: softcap * tanh(score / softcap). None by default.
  HEED_NUMBER_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Whether the mean is returned, the sum, or a loss for each row.
  TORCH_ARG(LossReduction, reduction) = LossReduction::mean;
};

/// The cross entropy of the scores x weight^T + bias, as torch::nn::functional::cross_entropy
/// computes it, without the scores: they are made a block of rows at a time, and with each block
/// its gradients. Besides the gradients, this takes at most 64 MB, and for half types the weight's
/// gradient in float32. Wijmans et al. 2024 (arXiv:2411.09009).
///
/// @code
/// auto x = torch::randn({6, 16}).requires_grad_();
/// auto weight = torch::randn({100, 16}).requires_grad_();
/// auto targets = torch::tensor({3, 1, 4, 1, -100, 9});  // the fifth row is ignored
/// auto loss = heed::linear_cross_entropy(x, weight, targets);
/// loss.backward();
/// @endcode
///
/// Shapes:
///   x         [N, E]  floating
///   weight    [V, E]  dtype of x: what a Linear or an Embedding holds
///   targets   [N]     int64, each in [0, V) or `ignore_index`
///   returns   []      or [N] without reduction; in float64 for float64, else in float32
///
/// If all rows are ignored, the loss is 0, and so are its gradients. Under autocast, x, weight and
/// bias are converted as by a Linear. With LossReduction::none, or when a graph is differentiated
/// more than once, the backward pass computes the scores again. For second derivatives, and for
/// tensors of torch.func or with tangents, the scores are computed as a whole.
///
/// Throws c10::ValueError when an option, shape, dtype or device is invalid; on the CPU also when a
/// target is. Elsewhere, reading the targets would wait for the device.
HEED_API at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                         const at::Tensor& targets,
                                         const LinearCrossEntropyOptions& options = {});

}  // namespace heed
