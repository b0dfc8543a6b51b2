#pragma once

#include "core/problem.h"

/// The ways to compute attention. `takes` says what a path can do, whether or not it is the best;
/// `attend` computes a problem that it takes.

namespace heed::detail {

struct Attended {
  at::Tensor output;   // [B, H, L, Dv]
  at::Tensor weights;  // [B, H, L, S]; undefined unless wanted
};

namespace decode_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace decode_path

namespace block_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace block_path

namespace fused_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace fused_path

/// Takes every problem; forward-mode differentiation alone.
namespace math_path {
Attended attend(const Problem& problem);
}

}  // namespace heed::detail
