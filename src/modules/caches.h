#pragma once

#include <heed/attend_options.h>
#include <heed/kv_cache.h>
#include <heed/rotary_embedding.h>

#include "modules/heads.h"

/// What modules that go on from a cache share.

namespace heed::detail {

/// An empty cache for the keys that `weight` projects: on its device, in its dtype or autocast's.
/// Without the window where the capacity is less.
KVCache make_cache(KVCacheOptions options, const at::Tensor& weight);

/// Heads in the cache's dtype, from which autocast's may differ.
at::Tensor as_cached(const at::Tensor& heads, const KVCache& cache);

/// The angles of the `count` tokens that are appended next, in the dtype of `like`.
RotaryAngles next_angles(const RotaryEmbedding& rotary, const KVCache& cache, int64_t count,
                         const at::TensorOptions& like);

/// A cache that slides must keep what the call's window sees; and what `attend` refuses must be
/// refused before the cache is appended to.
void check_cache(const char* function, const KVCache& cache, const AttendOptions& call);

/// The call by which the tokens of the cache's last append attend to its keys, causally.
AttendOptions cached_call(const KVCache& cache, AttendOptions call);

/// Appends key and value, and lets query attend to all keys of the cache, causally.
at::Tensor attend_cached(const Heads& heads, KVCache& cache, at::IntArrayRef counts,
                         const AttendOptions& call);

}  // namespace heed::detail
