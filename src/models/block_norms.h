// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/transformer.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <cstddef>

#include "cpu/layers/norm_rows.h"

namespace heed::detail {

/// A place of a norm in a block: its name, and the member that holds a Norm there.
struct NormPlace {
  const char* name;
  Norm TransformerBlockImpl::*member;
};

/// The places of norms, in the order in which a block holds norms of the user's.
inline constexpr NormPlace kNormPlaces[] = {
    {"attention_norm", &TransformerBlockImpl::attention_norm},
    {"attention_output_norm", &TransformerBlockImpl::attention_output_norm},
    {"cross_attention_norm", &TransformerBlockImpl::cross_attention_norm},
    {"cross_attention_output_norm", &TransformerBlockImpl::cross_attention_output_norm},
    {"feed_forward_norm", &TransformerBlockImpl::feed_forward_norm},
    {"feed_forward_output_norm", &TransformerBlockImpl::feed_forward_output_norm}};

/// The indices of these places.
/// @{
inline constexpr size_t kAttentionNorm = 0, kCrossAttentionNorm = 2, kFeedForwardNorm = 4;
/// The place of the norm of a layer's output, by that of the layer's norm.
constexpr size_t output_norm(size_t norm) { return norm + 1; }
/// @}

/// Registers a norm of the kind that the block has: in `plain` a Norm, in `own` one of the user's.
void make_norm(const char* function, torch::nn::Module& owner, const char* name,
               const TransformerBlockOptions& block, Norm& plain, torch::nn::AnyModule& own);

/// Normalizes x by the norm that `make_norm` made; returns x itself if there is none.
at::Tensor apply_norm(const char* function, const Norm& plain, const torch::nn::AnyModule& own,
                      const at::Tensor& x);

/// x + added, if it is kept, and its norm by what `make_norm` made: in one pass, or undefined where
/// that cannot be.
SumAndNorm add_and_apply_norm(const Norm& plain, const at::Tensor& x, const at::Tensor& added,
                              bool keeps_sum);

}  // namespace heed::detail
