// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <heed/linear_cross_entropy.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "cpu/layers/linear.h"
#include "modules/layers/loss_pass.h"

namespace heed::detail {

/// Throws c10::ValueError, which begins with `function`, if heed::linear_cross_entropy would for
/// these arguments. Under autocast, it does not compare dtypes. `shared` may be null.
HEED_API void check_linear_cross_entropy(const char* function, const at::Tensor& x,
                                         const at::Tensor& weight, const at::Tensor& targets,
                                         const LinearCrossEntropyOptions& options,
                                         const SharedClasses* shared = nullptr);

/// Computes heed::linear_cross_entropy where processes share the classes: weight and the bias are
/// this process's shards, and class_weight has all classes. The gradient of x is this process's
/// term of a sum.
HEED_API at::Tensor linear_cross_entropy_of_shard(const char* function, const at::Tensor& x,
                                                  const at::Tensor& weight,
                                                  const at::Tensor& targets,
                                                  const LinearCrossEntropyOptions& options,
                                                  const SharedClasses& shared);

/// Computes the wanted gradients of heed::linear_cross_entropy from that of its result, without
/// autograd.
LossGradients linear_cross_entropy_gradients(const at::Tensor& of_loss, const at::Tensor& x,
                                             const at::Tensor& weight, const at::Tensor& targets,
                                             const LinearCrossEntropyOptions& options,
                                             const WantedLossGradients& wanted);

/// The loss of a model's scores for x [B, L, E] and targets [B, L]. The head that computes them is
/// a Linear or an Embedding, or what stands in its place, or a weight and a bias.
/// @{
at::Tensor loss_of_head(const torch::nn::Linear& head, const at::Tensor& x,
                        const at::Tensor& targets, const LinearCrossEntropyOptions& options);
at::Tensor loss_of_head(const torch::nn::Embedding& head, const at::Tensor& x,
                        const at::Tensor& targets, const LinearCrossEntropyOptions& options);
at::Tensor loss_of_head(const LinearParameters& head, const at::Tensor& x,
                        const at::Tensor& targets, const LinearCrossEntropyOptions& options);
/// @}

}  // namespace heed::detail
