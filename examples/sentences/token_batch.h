#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace heed::examples
