#pragma once

#include <array>
#include <vector>

#include "core/problem.h"

/// The ways to compute attention. `takes` tells whether a path can compute a problem, even if
/// another path is better; `attend` computes a problem that the path takes.

namespace heed::detail {

struct BlockOutput;

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
/// For gradients of the output and the lse, of which the latter may be undefined.
Gradients gradients(const Problem& problem, uint64_t dropout_key, const BlockOutput& result,
                    const WantedGradients& wanted, const at::Tensor& of_output,
                    const at::Tensor& of_lse);
/// [B, H, L]; -inf for a query without keys and sink.
at::Tensor lse_of(const BlockOutput& result);
/// Of a part, whose queries have the output and lse `whole` over all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);
}  // namespace block_path

namespace fused_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace fused_path

/// LibTorch's kernels for CUDA, called as `attend` needs them. They are taken where a first call
/// on small tensors was right; see cuda/trust.h.
/// @{
namespace flash_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace flash_path

namespace efficient_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace efficient_path
/// @}

/// LibTorch's operators on some queries at a time, computed again in the backward pass. Takes every
/// problem that has no tangents and wants no weights.
namespace query_blocks_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
/// For gradients of the output and the lse, which may be undefined.
Gradients gradients(const Problem& problem, const WantedGradients& wanted,
                    const at::Tensor& of_output, const at::Tensor& of_lse);
/// Of a part, whose queries have the output and lse `whole` over all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);

/// While this object exists, a block has so many scores, but no fewer than 16 queries. For tests.
class ScopedScores {
 public:
  explicit ScopedScores(int64_t scores);
  ~ScopedScores();
  ScopedScores(const ScopedScores&) = delete;
  ScopedScores& operator=(const ScopedScores&) = delete;

 private:
  int64_t previous_;
};
}  // namespace query_blocks_path

/// Takes every problem. It is the only path with forward-mode differentiation.
namespace math_path {
Attended attend(const Problem& problem);
/// For gradients of the output and the lse, which may be undefined. Draws dropout again.
Gradients gradients(const Problem& problem, const WantedGradients& wanted,
                    const at::Tensor& of_output, const at::Tensor& of_lse);
/// The same, recorded for autograd: gradients that can be differentiated again, in O(L * S) memory.
Gradients differentiable_gradients(const Problem& problem, const WantedGradients& wanted,
                                   const std::vector<at::Tensor>& of_results);
/// Of a part, whose queries have the output and lse `whole` over all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);
}  // namespace math_path

}  // namespace heed::detail
