#include "modules/caches.h"

#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <heed/attend.h>

#include <string>

#include "attend/attend_lengths.h"
#include "core/attend_checks.h"
#include "core/error.h"
#include "core/offsets.h"

namespace heed::detail {

KVCache make_cache(KVCacheOptions options, const CacheOptions& asked, const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  const auto device = weight.device();
  const bool casts = at::autocast::is_autocast_enabled(device.type()) && dtype != at::kDouble;
  const auto window = options.window();
  const bool evicts = window && *window <= options.capacity() && !asked.fixed_shapes();
  if (!evicts) options.window(std::nullopt);
  return KVCache(options.dtype(casts ? at::autocast::get_autocast_dtype(device.type()) : dtype)
                     .device(device)
                     .fixed_shapes(asked.fixed_shapes()));
}

at::Tensor as_cached(const at::Tensor& heads, const KVCache& cache) {
  const bool casts = at::autocast::is_autocast_enabled(heads.device().type());
  return casts ? heads.to(cache.options().dtype()) : heads;
}

RotaryAngles next_angles(const RotaryEmbedding& rotary, const KVCache& cache, int64_t count,
                         const at::TensorOptions& like) {
  if (!cache.options().fixed_shapes()) {
    const auto first = cache.lengths();
    if (all_equal(first)) return rotary->angles(first[0], count, like);
  }
  return rotary->angles(cache.next_positions(count), c10::typeMetaToScalarType(like.dtype()));
}

void check_cache(const char* function, const KVCache& cache, const AttendOptions& call) {
  const auto kept = cache.options().window();
  HEED_CHECK(!kept || (call.window() && *call.window() <= *kept),
             "{}: cache window ({}) must be at least the module's ({})", function, kept.value_or(0),
             call.window() ? std::to_string(*call.window()) : "none");
  check_precision(function, cache.options().dtype(), call);
}

at::Tensor attend_last(const char* function, const KVCache& cache, const Heads& heads,
                       const AttendOptions& call) {
  auto causal = call;
  causal.causal(true);
  // Autocast would convert all of the cache to its own dtype, in each step.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto& [query, key, value] = heads;
  return cache.has_equal_lengths()
             ? attend(query, key, value, causal)
             : attend_lengths(function, query, key, value, cache.query_lengths(),
                              cache.key_lengths(), causal);
}

at::Tensor attend_cached(const char* function, const Heads& heads, KVCache& cache,
                         at::IntArrayRef counts, const AttendOptions& call) {
  cache.append(as_cached(heads.key, cache), as_cached(heads.value, cache), counts);
  return attend_last(function, cache, {as_cached(heads.query, cache), cache.keys(), cache.values()},
                     call);
}

}  // namespace heed::detail
