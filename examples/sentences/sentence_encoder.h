// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/text_encoder.h>

#include <cstdint>
#include <vector>

namespace heed::examples {

/// Token ids of a sentence.
using Tokens = std::vector<int64_t>;

/// A batch of sentences, with the shorter ones padded.
struct PaddedBatch {
  at::Tensor ids;      ///< [B, L]
  at::Tensor lengths;  ///< [B], without the padding

  PaddedBatch to(at::Device device) const { return {ids.to(device), lengths.to(device)}; }
};

PaddedBatch pad(const std::vector<Tokens>& sentences);

/// Turns sentences into vectors of length 1, whose dot products are the similarities of the
/// sentences: the mean of what the encoder computes for each sentence's tokens. Reimers and
/// Gurevych 2019 (arXiv:1908.10084). Returns [B, E].
at::Tensor embed(TextEncoder& encoder, const PaddedBatch& batch);

}  // namespace heed::examples
