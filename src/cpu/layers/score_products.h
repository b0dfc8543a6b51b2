// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace heed::detail {

/// Scores x weight^T [n, V], by the gradients of which x [n, E] and weight [V, E] have gradients.
/// All are contiguous, on the CPU and of one dtype.
struct ScoreProduct {
  at::Tensor of_scores, x, weight;
};

/// Whether `add_score_products` computes the gradients of such scores faster than other products
/// do: those of each block of `rows` rows of x.
bool takes_score_products(const at::Tensor& x, const at::Tensor& weight, int64_t rows);

/// of_x [n, E] = of_scores weight, in its own dtype, and of_weight [V, E] (+)= of_scores^T x, in
/// float32; either may be undefined. The first block of rows overwrites of_weight.
void add_score_products(const ScoreProduct& product, const at::Tensor& of_x,
                        const at::Tensor& of_weight, bool is_first);

}  // namespace heed::detail
