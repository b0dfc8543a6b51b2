// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>

#include <string>
#include <vector>

#include "support/inputs.h"

namespace heed::test {

/// Sizes and options that attend and the reference are both given.
struct ReferenceCase {
  Sizes sizes;
  AttendOptions options;
  std::string name;
  bool fused = true;  ///< whether LibTorch's kernel can be given it
};

/// Forward error, |values| <= 1, in unit roundoffs of the dtype. In float32 and float64 the D-term
/// products, S-term sums and exp each add a few, scores of size `largest_score` that many more; in
/// half precision the weights and the output are rounded once each, and rounding errors of up to S
/// weights add up to at most one roundoff of their sum.
double forward_tolerance(at::ScalarType dtype, double largest_score = 0);

/// attend on every route, and attend_with_weights, give the reference's output and weights.
void expect_outputs_of_reference(const std::vector<ReferenceCase>& cases,
                                 const at::TensorOptions& options, double largest_score = 0);

/// They give its gradients too: of query, key, value, and of biases, slopes and sinks that require
/// them.
void expect_gradients_of_reference(const std::vector<ReferenceCase>& cases,
                                   const at::TensorOptions& options, double largest_score = 0);

}  // namespace heed::test
