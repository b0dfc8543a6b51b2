// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend_path.h>

#include <array>
#include <string_view>
#include <vector>

#include "core/problem.h"

/// The ways to compute attention. `takes` tells whether a path can compute a problem, even if
/// another path is better; `attend` computes a problem that the path takes.

namespace heed::detail {

struct BlockOutput;

struct Attended {
  at::Tensor output;        // [B, H, L, Dv]
  at::Tensor weights = {};  // [B, H, L, S]; undefined unless wanted
  // [B, H, L] in the dtype of the computation: log(sum(exp(score))); undefined unless wanted
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
/// The gradients of a problem from those of its output and its lse; `of_lse` may be undefined.
Gradients gradients(const Problem& problem, uint64_t dropout_key, const BlockOutput& result,
                    const WantedGradients& wanted, const at::Tensor& of_output,
                    const at::Tensor& of_lse);
/// The lse [B, H, L]; -inf for a query without keys and without a sink.
at::Tensor lse_of(const BlockOutput& result);
/// The gradients of a part of a call. `whole` has the output and lse of the part's queries over
/// all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);
}  // namespace block_path

namespace fused_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
}  // namespace fused_path

/// LibTorch's kernels for CUDA, called directly. A kernel is used only if it was right in a first
/// call on small tensors; see cuda/trust.h.
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

/// Computes some queries at a time with LibTorch's operators, and again in the backward pass.
/// Takes every problem without tangents whose weights are not wanted, unless it is empty or has
/// meta tensors.
namespace query_blocks_path {
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
/// The gradients of a problem from those of its output and its lse, each of which may be
/// undefined.
Gradients gradients(const Problem& problem, const WantedGradients& wanted,
                    const at::Tensor& of_output, const at::Tensor& of_lse);
/// The gradients of a part of a call. `whole` has the output and lse of the part's queries over
/// all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);

/// While this object exists, a block of queries has at most `scores` scores, or 16 queries if
/// these have more. For tests.
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
bool takes(const Problem& problem);
Attended attend(const Problem& problem);
/// The gradients of a problem from those of its output and its lse, each of which may be
/// undefined. Dropout is drawn again.
Gradients gradients(const Problem& problem, const WantedGradients& wanted,
                    const at::Tensor& of_output, const at::Tensor& of_lse);
/// The gradients of a problem, recorded for autograd so that they can be differentiated again, in
/// O(L * S) memory. There must be no dropout.
Gradients differentiable_gradients(const Problem& problem, const WantedGradients& wanted,
                                   const std::vector<at::Tensor>& of_results);
/// The gradients of a part of a call. `whole` has the output and lse of the part's queries over
/// all parts.
Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted);
}  // namespace math_path

/// A way to compute attention.
struct Path {
  AttendPath path;
  std::string_view name;
  bool (*takes)(const Problem& problem);
  Attended (*attend)(const Problem& problem);
  /// The gradients of a part of a call that this path has computed; null if it takes no parts.
  Gradients (*gradients_of_part)(const Problem& problem, const Attended& whole,
                                 const at::Tensor& output_gradient, const WantedGradients& wanted);
};

/// The table of all paths: a new one is a row in paths.cpp.
const Path& path_of(AttendPath path);

}  // namespace heed::detail
