#pragma once

#include <heed/attend.h>

#include "support/inputs.h"

namespace heed::test {

/// Whether options ask for what `dense_mask` and `dense_bias` express.
bool needs_dense(const AttendOptions& options);

/// Bool [B, H, L, S]: the keys that queries see, by the definition of each option.
at::Tensor dense_mask(const Inputs& inputs, const AttendOptions& options);

/// The options' tensors that are added to scores, in float64 on the CPU; undefined where there is
/// none.
struct AddedScores {
  at::Tensor bias, relative_bias, alibi_slopes;
};
AddedScores added_scores_of(const AttendOptions& options);

/// Float64 [B, H, L, S]: what they add to the scores of `inputs`, recorded for autograd; undefined
/// if all are.
at::Tensor dense_bias(const Inputs& inputs, const AttendOptions& options, const AddedScores& added);

}  // namespace heed::test
