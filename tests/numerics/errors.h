// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::test {

/// An attention without mask or bias, and its float64 weights [B, H, L, S].
struct Operands {
  at::Tensor query, key, value;  // [B, H, L, D], [B, G, S, D], [B, G, S, Dv]
  at::Tensor output_gradient;    // [B, H, L, Dv]
  at::Tensor weights;
  double scale;
};

/// Raises weights to where they are as precise as others: beside the largest, one below the
/// smallest normal number of float32, or of float64 for a float64 `dtype`, is 0.
at::Tensor precise_weights(const at::Tensor& weights, at::ScalarType dtype);

/// For each element of the output and the gradients the sum of the absolute values of its terms, in
/// float64: what rounding errors are measured by, for a sum's own value may be far smaller.
struct TermSums {
  at::Tensor output, query_grad, key_grad, value_grad;
};

TermSums term_sums(const Operands& operands);

/// The largest sum of the absolute terms of a scaled score.
double largest_score(const Operands& operands);

/// The largest error in unit roundoffs of the dtype times the terms' sum. `floor`, in steps of the
/// dtype's subnormal numbers, is an error that nothing is said of: results are rounded to steps.
double roundoffs(const at::Tensor& actual, const at::Tensor& exact, const at::Tensor& term_sum,
                 double floor = 0);

}  // namespace heed::test
