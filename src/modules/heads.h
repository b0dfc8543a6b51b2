// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/direct.h"

namespace heed::detail {

/// The arguments of `attend`: query [B, H, L, D], key [B, G, S, D], value [B, G, S, Dv].
struct Heads {
  at::Tensor query, key, value;
};

/// Views [B, L, heads * D] as [B, heads, L, D].
inline at::Tensor split_heads(const at::Tensor& packed, int64_t heads) {
  if (takes_direct_views(packed)) {
    const auto dim = packed.size(2) / heads, step = packed.stride(2);
    return direct_view(packed, {packed.size(0), heads, packed.size(1), dim},
                       {packed.stride(0), dim * step, packed.stride(1), step});
  }
  return packed.view({packed.size(0), packed.size(1), heads, packed.size(2) / heads})
      .transpose(1, 2);
}

/// Merges heads: [B, H, L, Dv] becomes [B, L, H * Dv]. This is a view if the memory order is
/// [B, L, H, Dv], as in the kernels' results.
inline at::Tensor merge_heads(const at::Tensor& heads) {
  const auto columns = heads.size(3);
  if (heads.stride(1) == columns * heads.stride(3) && takes_direct_views(heads)) {
    return direct_view(heads, {heads.size(0), heads.size(2), heads.size(1) * columns},
                       {heads.stride(0), heads.stride(2), heads.stride(3)});
  }
  return heads.transpose(1, 2).flatten(2);
}

}  // namespace heed::detail
