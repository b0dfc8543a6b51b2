#pragma once

#include <limits>

#include "core/problem.h"

namespace heed::detail {

/// The score of a hidden key.
inline constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

/// Mask, causal and window joined: bool, broadcastable to [B, H, L, S]; undefined when every query
/// sees every key.
at::Tensor allowed_keys(const Problem& problem);

/// Bias and ALiBi's, broadcastable to [B, H, L, S]; undefined when there is neither.
at::Tensor added_scores(const Problem& problem, at::ScalarType dtype);

/// `allowed_keys` and `added_scores` in the one tensor that at::scaled_dot_product_attention takes:
/// bool, or floating with -inf at hidden keys; undefined when there is neither.
at::Tensor score_mask(const Problem& problem, at::ScalarType bias_dtype);

/// Queries that `score_mask` leaves no key: bool, its last dimension 1.
at::Tensor queries_without_keys(const at::Tensor& score_mask);

}  // namespace heed::detail
