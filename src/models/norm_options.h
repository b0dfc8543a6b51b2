#pragma once

#include <heed/transformer.h>

namespace heed::detail {

/// The options of the norms in a block, and around blocks.
inline NormOptions norm_options(const TransformerBlockOptions& block) {
  return NormOptions(block.emb_dim())
      .kind(block.norm())
      .eps(block.norm_eps())
      .bias(block.norm_bias())
      .unit_offset(block.norm_unit_offset());
}

}  // namespace heed::detail
