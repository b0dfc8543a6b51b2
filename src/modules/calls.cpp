#include "modules/calls.h"

#include <ATen/TensorOperators.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "core/offsets.h"

namespace heed::detail {

AttendOptions call_options(const std::optional<at::Tensor>& mask, double dropout, bool training) {
  return AttendOptions().mask(mask).dropout(training ? dropout : 0.0);
}

RotaryEmbedding make_rotary(const char* function,
                            const std::optional<RotaryEmbeddingOptions>& options,
                            int64_t head_dim) {
  if (!options) return nullptr;
  HEED_CHECK(options->head_dim() == head_dim,
             "{}: rotary head_dim ({}) must equal the module's head dim ({})", function,
             options->head_dim(), head_dim);
  return std::make_shared<RotaryEmbeddingImpl>(*options);
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

}  // namespace heed::detail
