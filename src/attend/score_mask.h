// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <limits>

#include "core/problem.h"

namespace heed::detail {

/// The score that a hidden key gets.
inline constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

/// The intersection of `mask`, which may be undefined, with these queries and keys of the problem's
/// block mask, if it has one: bool [B or 1, H or 1, L or 1, S].
at::Tensor with_block_mask(const at::Tensor& mask, const Problem& problem, KeyRange queries,
                           KeyRange keys);

/// The intersection of masks, documents, causal and windows: bool, broadcastable to [B, H, L, S];
/// undefined when every query sees every key.
at::Tensor allowed_keys(const Problem& problem);

/// The sum of the bias and of those of ALiBi and relative positions, broadcastable to [B, H, L, S];
/// undefined when there is none.
at::Tensor added_scores(const Problem& problem, at::ScalarType dtype);

/// Combines `allowed_keys` and `added_scores` in the mask of at::scaled_dot_product_attention:
/// bool, or floating with -inf at hidden keys; undefined if both are.
at::Tensor score_mask(const Problem& problem, at::ScalarType bias_dtype);

/// Whether a query sees no key under `score_mask`: bool, with a last dimension of 1.
at::Tensor queries_without_keys(const at::Tensor& score_mask);

}  // namespace heed::detail
