// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/transformer.h>

#include "core/error.h"

namespace heed::detail {

/// The options of the norms in a block, and around blocks.
inline NormOptions norm_options(const TransformerBlockOptions& block) {
  return NormOptions(block.emb_dim())
      .kind(block.norm())
      .eps(block.norm_eps())
      .bias(block.norm_bias())
      .unit_offset(block.norm_unit_offset());
}

/// The options of the norm of a model's embeddings. Errors name `function`.
inline NormOptions embedding_norm_options(const char* function,
                                          const TransformerBlockOptions& block) {
  HEED_CHECK(!block.has_own_norm(), "{}: embedding_norm must be false with norms of your own",
             function);
  return norm_options(block);
}

}  // namespace heed::detail
