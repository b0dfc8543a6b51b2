#pragma once

#include "attend/paths/paths.h"

namespace heed::detail {

/// What a call of `attend` keeps for its backward pass, as tensors whose shapes depend on the
/// arguments' shapes alone. So the two passes can be operators of a graph that a compiler cuts.
struct KeptAttention {
  at::Tensor output;                // [B, H, L, Dv]
  at::Tensor largest, inverse_sum;  // [B, H, L]; as in BlockOutput if the block path computes it
  at::Tensor output_rest;           // as output; [0] if it is float32 or float64
};

/// What both passes of a call get.
struct KeptCall {
  Problem problem;  // `wanted` is the output, or the output and the lse
  uint64_t seed;    // of dropout
  WantedGradients gradients;
};

KeptAttention attend_keeping(const KeptCall& call);

/// [B, H, L], if it was wanted.
at::Tensor lse_of(const KeptAttention& kept);

/// For gradients of the output and the lse, each of which may be undefined. A path that keeps
/// nothing computes the call again.
Gradients gradients_of_kept(const KeptCall& call, const KeptAttention& kept,
                            const at::Tensor& of_output, const at::Tensor& of_lse);

}  // namespace heed::detail
