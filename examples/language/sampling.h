#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace heed::examples {

/// How the next token is sampled.
struct SamplingOptions {
  bool greedy = false;       ///< always take the most likely token
  double temperature = 0.8;  ///< divides the scores; below 1, likely tokens become likelier
  int64_t top_k = 0;         ///< only the k most likely tokens; 0: all
  double top_p = 1.0;        ///< only the most likely that together reach this probability
};

/// Samples a token from its scores [V] with LibTorch's generator.
int64_t sample(const at::Tensor& scores, const SamplingOptions& options);

}  // namespace heed::examples
