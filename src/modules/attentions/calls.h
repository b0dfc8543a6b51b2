#pragma once

#include <heed/attend.h>
#include <heed/kv_cache.h>
#include <heed/rotary_embedding.h>

namespace heed::detail {

/// Options of one call of a module that takes no bias: the mask that was passed, and dropout in
/// training mode only.
AttendOptions call_options(const char* function, const std::optional<at::Tensor>& mask,
                           double dropout, bool training);

/// The module's rotary embedding; empty where no options are given. Its head dim must be
/// `head_dim`.
RotaryEmbedding make_rotary(const char* function,
                            const std::optional<RotaryEmbeddingOptions>& options, int64_t head_dim);

}  // namespace heed::detail
