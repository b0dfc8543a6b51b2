// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/rotary_embedding.h>

#include <cstdint>
#include <optional>
#include <string>

/// The frequencies of a rotary embedding, and how a scaling changes them.

namespace heed::detail {

constexpr auto kRotaryEmbedding = "RotaryEmbedding";

/// Checks the scaling of an embedding that rotates `dim` elements, R.
void check_scaling(const RotaryEmbeddingOptions& options, int64_t dim);

/// The frequencies of `dim` rotated elements, scaled: float64 [R / 2]. They are undefined if they
/// depend on the length.
at::Tensor rotary_frequencies(double base, int64_t dim,
                              const std::optional<RotaryScaling>& scaling);

/// The frequencies [.., R / 2] of sequences with lengths float64 [.., 1], for scalings that depend
/// on the length.
at::Tensor rotary_frequencies(double base, int64_t dim, const RotaryScaling& scaling,
                              const at::Tensor& lengths);

/// The factor by which a scaling multiplies both query and key.
double attention_factor(const RotaryScaling& any);

bool are_equal(const RotaryScaling& a, const RotaryScaling& b);

/// The scaling and its options, as modules print them.
std::string printed(const RotaryScaling& scaling);

}  // namespace heed::detail
