// SPDX-License-Identifier: BSD-3-Clause
#include "modules/attentions/calls.h"

#include <memory>

#include "core/attend_checks.h"
#include "core/error.h"

namespace heed::detail {

AttendOptions call_options(const char* function, const std::optional<at::Tensor>& mask,
                           double dropout, bool training) {
  if (mask) check_mask_dtype(function, "mask", *mask, /*takes_bias=*/false);
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

}  // namespace heed::detail
