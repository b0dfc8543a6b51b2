#pragma once

#include <heed/text_encoder.h>

#include "token_batch.h"

namespace heed::examples {

/// Turns sentences into vectors of length 1, whose dot products are the similarities of the
/// sentences: the mean of what the encoder computes for each sentence's tokens. Reimers and
/// Gurevych 2019 (arXiv:1908.10084). Returns [B, E].
at::Tensor embed(TextEncoder& encoder, const PaddedBatch& batch);

}  // namespace heed::examples
