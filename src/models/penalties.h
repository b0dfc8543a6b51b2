// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/sampling.h>

#include <cstddef>
#include <cstdint>

namespace heed::detail {

/// Checks the options that change single scores, for scores of `vocabulary` tokens. `has_history`:
/// the tokens so far are known.
void check_penalties(const char* function, const SamplingOptions& options, int64_t vocabulary,
                     bool has_history);

/// Checks the tokens so far of a row of scores of `vocabulary` tokens.
void check_history(const char* function, size_t row, const TokenHistory& history,
                   int64_t vocabulary);

/// Whether an option changes scores before the temperature does.
bool has_penalties(const SamplingOptions& options);

/// The scores [N, V] in float64, as the options leave them to the temperature. `options` are one
/// for all rows or one for each; `histories` one for each, or none.
at::Tensor penalize(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                    at::ArrayRef<TokenHistory> histories);

}  // namespace heed::detail
