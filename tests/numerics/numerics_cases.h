// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "support/inputs.h"

namespace heed::test {

/// An error is at most `output` or `gradients` unit roundoffs of the dtype, and `length` * sqrt(S)
/// + 4 s of the type computed in, times the sum of the element's absolute terms; s is the largest
/// scaled score, where the rounding of scores changes weights. docs/numerics.md quotes this table.
struct Bound {
  at::ScalarType dtype, computed_in;
  double output, gradients, length;
};

const std::vector<Bound>& bounds();

struct NumericsCase {
  std::string name;
  Sizes sizes;
  /// Whether the rounding of scores changes no weight: they are exact, or one leads by far.
  bool scores_settled;
  Inputs (*make)(const Sizes&, at::ScalarType);
  /// The largest gradient of outputs in float16, which may have to be small for the others to be
  /// numbers that float16 has.
  double half_gradient = 1;
};

const std::vector<NumericsCase>& numerics_cases();

/// 65,504 in float16, 1e30 elsewhere.
double huge(at::ScalarType dtype);

}  // namespace heed::test
