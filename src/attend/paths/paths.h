#pragma once

#include "core/problem.h"

/// The ways to compute attention. `takes` tells whether a path can compute a problem, even if
/// another path is better; `attend` computes a problem that the path takes.

namespace heed::detail {

struct Attended {
  at::Tensor output;        // [B, H, L, Dv]
  at::Tensor weights = {};  // [B, H, L, S]; undefined unless wanted
  // [B, H, L] in the type of the computation: log of the sum of exp(score); undefined unless wanted
  at::Tensor lse = {};
};

/// Gradients in the order of kProblemTensors; those not wanted are undefined.
using Gradients = std::array<at::Tensor, kGradientTensors>;

namespace decode_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace decode_path

namespace block_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
/// Of a part, whose queries have the output and lse `whole` over all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);
}  // namespace block_path

namespace fused_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace fused_path

/// Takes every problem. It is the only path with forward-mode differentiation.
namespace math_path {
Attended attend(const Problem& problem);
/// Of a part, whose queries have the output and lse `whole` over all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);
}  // namespace math_path

}  // namespace heed::detail
