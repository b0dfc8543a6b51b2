// SPDX-License-Identifier: BSD-3-Clause
#include "sentence_encoder.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <heed/masks.h>
#include <heed/pool_tokens.h>

namespace heed::examples {

PaddedBatch pad(const std::vector<Tokens>& sentences) {
  std::vector<at::Tensor> rows;
  Tokens lengths;
  for (const auto& tokens : sentences) {
    rows.push_back(at::tensor(tokens));
    lengths.push_back(static_cast<int64_t>(tokens.size()));
  }
  // The padding may be any token, because nothing attends to it.
  return {at::pad_sequence(rows, /*batch_first=*/true), at::tensor(lengths)};
}

at::Tensor embed(TextEncoder& encoder, const PaddedBatch& batch) {
  const auto mask = padding_mask(batch.lengths, batch.ids.size(1));  // [B, 1, 1, L]
  const auto x = encoder->forward(batch.ids, mask);                  // [B, L, E]
  const auto means = pool_tokens(x, Pooling::mean, mask);            // [B, E]
  return means / at::linalg_vector_norm(means, 2, -1, /*keepdim=*/true).clamp_min(1e-12);
}

}  // namespace heed::examples
