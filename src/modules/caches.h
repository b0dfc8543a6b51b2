#pragma once

#include <heed/attend_options.h>
#include <heed/kv_cache.h>
#include <heed/rotary_embedding.h>

#include "modules/heads.h"

/// Code that modules share for decoding with a cache.

namespace heed::detail {

/// An empty cache for the keys that `weight` projects: on its device, and in its dtype or
/// autocast's. It has no window if the capacity is smaller than the window, or if shapes are fixed.
KVCache make_cache(KVCacheOptions options, const CacheOptions& asked, const at::Tensor& weight);

/// Converts heads to the cache's dtype, which may differ from autocast's.
at::Tensor as_cached(const at::Tensor& heads, const KVCache& cache);

/// The angles of the next `count` tokens, in the dtype of `like`.
RotaryAngles next_angles(const RotaryEmbedding& rotary, const KVCache& cache, int64_t count,
                         const at::TensorOptions& like);

/// Checks that a cache with a window keeps all keys that the call's window sees, and that `attend`
/// will not throw, before anything is appended to the cache.
void check_cache(const char* function, const KVCache& cache, const AttendOptions& call);

/// Lets queries of the last append attend causally to keys and values that are the cache's, or
/// parts of them.
at::Tensor attend_last(const char* function, const KVCache& cache, const Heads& heads,
                       const AttendOptions& call);

/// Appends key and value, and lets query attend causally to all keys of the cache.
at::Tensor attend_cached(const char* function, const Heads& heads, KVCache& cache,
                         at::IntArrayRef counts, const AttendOptions& call);

}  // namespace heed::detail
