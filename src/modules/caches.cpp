#include "modules/caches.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>
#include <heed/attend.h>

#include <string>

#include "core/attend_checks.h"
#include "core/error.h"
#include "core/offsets.h"

namespace heed::detail {

KVCache make_cache(KVCacheOptions options, const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  const auto device = weight.device();
  const bool casts = at::autocast::is_autocast_enabled(device.type()) && dtype != at::kDouble;
  const auto window = options.window();
  if (window && *window > options.capacity()) options.window(std::nullopt);
  return KVCache(options.dtype(casts ? at::autocast::get_autocast_dtype(device.type()) : dtype)
                     .device(device));
}

at::Tensor as_cached(const at::Tensor& heads, const KVCache& cache) {
  const bool casts = at::autocast::is_autocast_enabled(heads.device().type());
  return casts ? heads.to(cache.options().dtype()) : heads;
}

RotaryAngles next_angles(const RotaryEmbedding& rotary, const KVCache& cache, int64_t count,
                         const at::TensorOptions& like) {
  const auto first = cache.lengths();
  return all_equal(first)
             ? rotary->angles(first[0], count, like)
             : rotary->angles(cache.next_positions(count), c10::typeMetaToScalarType(like.dtype()));
}

void check_cache(const char* function, const KVCache& cache, const AttendOptions& call) {
  const auto kept = cache.options().window();
  HEED_CHECK(!kept || (call.window() && *call.window() <= *kept),
             "{}: cache window ({}) must be at least the module's ({})", function, kept.value_or(0),
             call.window() ? std::to_string(*call.window()) : "none");
  check_precision(function, cache.options().dtype(), call);
}

AttendOptions cached_call(const KVCache& cache, AttendOptions call) {
  const auto mask = cache.mask(call.window());
  if (!mask.defined()) return call.causal(true);
  if (const auto slopes = call.alibi_slopes()) {
    // Queries of different sequences stand at different positions.
    const auto dtype = at::promoteTypes(slopes->scalar_type(), cache.options().dtype());
    call.bias(slopes->to(dtype).view({1, -1, 1, 1}) * -cache.distances())
        .alibi_slopes(std::nullopt);
  }
  return call.mask(mask).causal(false).window(std::nullopt);
}

at::Tensor attend_cached(const Heads& heads, KVCache& cache, at::IntArrayRef counts,
                         const AttendOptions& call) {
  cache.append(as_cached(heads.key, cache), as_cached(heads.value, cache), counts);
  return attend(as_cached(heads.query, cache), cache.keys(), cache.values(),
                cached_call(cache, call));
}

}  // namespace heed::detail
