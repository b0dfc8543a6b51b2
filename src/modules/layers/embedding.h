// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>

#include "cpu/layers/packed_weight.h"
#include "modules/layers/linear.h"
#include "modules/layers/stand_in.h"

/// Functions of an Embedding, or of a layer that stands in its place.

namespace heed::detail {

/// The number of embeddings, in all processes together.
inline int64_t vocabulary(const torch::nn::Embedding& embedding) {
  const auto part = sharing(*embedding).part();
  return part ? part->whole : embedding->weight.size(0);
}

/// The embeddings of tokens [B, L]: [B, L, E].
inline at::Tensor embed(const torch::nn::Embedding& embedding, const at::Tensor& tokens) {
  if (const auto* own = stand_in_of(*embedding)) return own->embed(tokens);
  const auto& weight = embedding->weight;
  if (const auto* packed = packed_weight_of(weight)) {
    auto sizes = tokens.sizes().vec();
    sizes.push_back(packed->depth);
    return unpack_rows(*packed, tokens.flatten().to(at::kLong))
        .to(weight.scalar_type())
        .view(sizes);
  }
  return at::embedding(weight, tokens);
}

/// The products of x [B, L, E] with the embeddings that this process has: [B, L, rows].
inline at::Tensor scores(const torch::nn::Embedding& embedding, const at::Tensor& x) {
  const auto* own = stand_in_of(*embedding);
  return own ? own->scores(x) : detail::linear(x, embedding->weight);
}

}  // namespace heed::detail
