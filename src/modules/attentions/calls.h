// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>
#include <heed/kv_cache.h>
#include <heed/rotary_embedding.h>

namespace heed::detail {

/// Options for one call of a module that takes no bias: the mask, and dropout only in training
/// mode.
AttendOptions call_options(const char* function, const std::optional<at::Tensor>& mask,
                           double dropout, bool training);

/// Makes a module's rotary embedding; empty if there are no options. Checks that its head dim is
/// `head_dim`.
RotaryEmbedding make_rotary(const char* function,
                            const std::optional<RotaryEmbeddingOptions>& options, int64_t head_dim);

}  // namespace heed::detail
