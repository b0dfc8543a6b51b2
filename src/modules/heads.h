#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// The arguments of `attend`: query [B, H, L, D], key [B, G, S, D], value [B, G, S, Dv].
struct Heads {
  at::Tensor query, key, value;
};

/// [B, L, heads * D] to [B, heads, L, D], a view.
inline at::Tensor split_heads(const at::Tensor& packed, int64_t heads) {
  return packed.view({packed.size(0), packed.size(1), heads, packed.size(2) / heads})
      .transpose(1, 2);
}

/// [B, H, L, Dv] to [B, L, H * Dv]; a view of what the fused kernels return.
inline at::Tensor merge_heads(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

}  // namespace heed::detail
