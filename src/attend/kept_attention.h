// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "attend/paths/paths.h"

namespace heed::detail {

/// Tensors that a call of `attend` keeps for its backward pass. Their shapes depend only on the
/// shapes of the arguments, so a compiler can split the two passes into two graphs.
struct KeptAttention {
  at::Tensor output;                // [B, H, L, Dv]
  at::Tensor largest, inverse_sum;  // [B, H, L]; lse = largest - log(inverse_sum)
  at::Tensor output_rest;           // [B, H, L, Dv]; [0] for float32 and float64
};

/// The arguments of both passes of a call.
struct KeptCall {
  Problem problem;  // `wanted` is the output, or the output and the lse
  uint64_t seed;    // the seed of dropout's random numbers
  WantedGradients gradients;
};

KeptAttention attend_keeping(const KeptCall& call);

/// The lse [B, H, L], if it was wanted.
at::Tensor lse_of(const KeptAttention& kept);

/// Computes the gradients of a call's tensors from those of its output and lse, each of which may
/// be undefined. Unless the block path takes the call, the call is computed again.
Gradients gradients_of_kept(const KeptCall& call, const KeptAttention& kept,
                            const at::Tensor& of_output, const at::Tensor& of_lse);

}  // namespace heed::detail
