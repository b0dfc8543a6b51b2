// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "cpu/isa/layers.h"

namespace heed::detail {

/// A layer (silu(x gate^T) * (x up^T)) out^T, or what `form` makes of it.
struct SwiGluLayer {
  at::Tensor gate, up;  ///< [F, E]
  at::Tensor out;       ///< [E, F]
  SwiGluForm form;
};

/// Tensors that `swiglu_layer` keeps for its backward pass.
struct SwiGluHidden {
  /// The products with the first two weights, transposed: [panels, F, 64], a panel for each 64
  /// rows.
  at::Tensor gate, up;
};

/// The gradients of `swiglu_layer`; those that are not wanted are undefined.
struct SwiGluGradients {
  at::Tensor rows, gate, up, out;
};

/// The gradients that are wanted.
struct SwiGluWanted {
  bool rows, gate, up, out;
};

// The next functions compute on the calling thread, without autograd.

/// Whether `swiglu_layer` takes these rows [T, E] and this layer: tensors of bfloat16 on a
/// processor with products of its pairs, neither few nor many rows, and small weights.
bool takes_swiglu_layer(const at::Tensor& rows, const SwiGluLayer& layer);

/// The layer of these rows: [T, E]. Writes what the backward pass needs to `kept`, unless it is
/// null.
at::Tensor swiglu_layer(const at::Tensor& rows, const SwiGluLayer& layer, SwiGluHidden* kept);

/// The gradients of the rows and the weights. `gradient` [T, E] is the output's.
SwiGluGradients swiglu_layer_backward(const at::Tensor& rows, const SwiGluLayer& layer,
                                      const SwiGluHidden& kept, const at::Tensor& gradient,
                                      const SwiGluWanted& wanted);

}  // namespace heed::detail
