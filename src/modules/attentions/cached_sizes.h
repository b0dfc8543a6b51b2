// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/group_query_attention.h>
#include <heed/head_sizes.h>
#include <heed/latent_attention.h>

namespace heed::detail {

/// The heads that an attention's cache holds.
inline HeadSizes cached_sizes(const GroupQueryAttentionImpl& attention) {
  return attention.head_sizes;
}

/// The heads that a cache holds: latent vectors and their rotated part, for all heads together.
/// Values are a part of the keys.
inline HeadSizes cached_sizes(const LatentAttentionImpl& attention) {
  return {attention.head_sizes.heads, 1, attention.fc_kv_down->weight.size(0), 0};
}

}  // namespace heed::detail
