#pragma once

#include <heed/attend.h>
#include <heed/kv_cache.h>
#include <heed/rotary_embedding.h>

namespace heed::detail {

/// Options of one call: the mask that was passed, and dropout in training mode only.
AttendOptions call_options(const std::optional<at::Tensor>& mask, double dropout, bool training);

/// The module's rotary embedding; empty where no options are given. Its head dim must be
/// `head_dim`.
RotaryEmbedding make_rotary(const char* function,
                            const std::optional<RotaryEmbeddingOptions>& options, int64_t head_dim);

/// The angles of the `count` tokens that are appended next, in the dtype of `like`.
RotaryAngles next_angles(const RotaryEmbedding& rotary, const KVCache& cache, int64_t count,
                         const at::TensorOptions& like);

/// A cache that slides must keep what the call's window sees.
void check_cache(const char* function, const KVCache& cache, const AttendOptions& call);

/// The call by which the tokens of the cache's last append attend to its keys, causally.
AttendOptions cached_call(const KVCache& cache, AttendOptions call);

}  // namespace heed::detail
