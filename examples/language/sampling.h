#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace heed::examples {

/// How the next token is drawn.
struct SamplingOptions {
  bool greedy = false;       ///< the likeliest token, whatever the others say
  double temperature = 0.8;  ///< divides the scores: below 1 the likely become likelier
  int64_t top_k = 0;         ///< only the k likeliest; 0: all
  double top_p = 1.0;        ///< only the likeliest that together reach this probability
};

/// Draws a token by its scores [V], with LibTorch's generator.
int64_t sample(const at::Tensor& scores, const SamplingOptions& options);

}  // namespace heed::examples
