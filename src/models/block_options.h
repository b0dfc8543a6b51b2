// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/transformer.h>

namespace heed::detail {

/// The name of a block in errors.
inline constexpr auto kBlock = "TransformerBlock";

/// Throws if the options of a block are out of range or contradict each other.
void check_block_options(const TransformerBlockOptions& options);

/// The options of a block's cross-attention.
GroupQueryAttentionOptions cross_attention_options(const TransformerBlockOptions& options);

/// The width of the memory that a block's cross-attention takes.
int64_t memory_width(const TransformerBlockOptions& options);

/// The probability with which a block drops elements of the feed-forward layer's output.
inline double feed_forward_dropout(const TransformerBlockOptions& options) {
  return options.feed_forward_dropout().value_or(options.dropout());
}

}  // namespace heed::detail
