// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "core/problem.h"
#include "cpu/capability.h"

namespace heed::detail {

/// Attention over blocks of queries and blocks of keys, on the CPU: a thread holds only one tile
/// of scores at a time (Dao et al. 2022, arXiv:2205.14135). Takes every Problem that is not empty.
/// The random numbers of dropout depend on `dropout_key` and the position (b, h, i, j) of the
/// weight, so that no result depends on the number of threads. docs/kernels.md, Block.

struct BlockOutput {
  at::Tensor output;  // [B, H, L, Dv]
  // [B, H, L] in the type of the computation: each query's largest score, and 1 over the sum of
  // exp(score - largest); both are 0 if there are no keys. They are not stored as one number,
  // largest + log(sum), because rounding would lose the sum next to a large score.
  at::Tensor largest, inverse_sum;
  at::Tensor weights;  // [B, H, L, S], undefined unless asked for
  // [B, H, L, Dv] in the output's dtype: the rounding error of the output. The backward pass needs
  // it because it subtracts nearly equal numbers. Undefined if nothing was rounded.
  at::Tensor output_rest;
};

enum class BlockUse {
  inference,  ///< only the output is needed; see multiplies_pairs
  training,   ///< block_backward follows; it computes the weights again and must get the same ones
  weights,    ///< inference without dropout that also returns the weights
};

/// Whether inference multiplies numbers of the dtype in pairs: bfloat16, if the processor can.
inline bool multiplies_pairs(at::ScalarType dtype) {
  return dtype == at::kBFloat16 && instruction_set().multiplies_bfloat16;
}

/// Whether training multiplies bfloat16 in pairs. The backward pass must then compute the very
/// weights of the forward pass, and so know how they were rounded. It does not for a part of a
/// problem, nor if the log of the sum is a result. With a bias it does not multiply pairs either,
/// because the gradient of a bias is a sum of gradients that are not rounded.
inline bool trains_in_pairs(const Problem& problem) {
  return multiplies_pairs(problem.query.scalar_type()) && problem.wanted == Wanted::output &&
         problem.rounds() && !problem.bias.defined();
}

BlockOutput block_forward(const Problem& problem, uint64_t dropout_key, BlockUse use);

/// The gradients of a problem, in the order of kProblemTensors.
struct BlockGradients {
  at::Tensor query, key, value, bias, sinks, relative_bias, alibi_slopes;
};

/// `lse_gradient` [B, H, L] is undefined unless the log of the sum was used.
BlockGradients block_backward(const Problem& problem, uint64_t dropout_key,
                              const BlockOutput& forward, const at::Tensor& output_gradient,
                              const at::Tensor& lse_gradient, const WantedGradients& wanted);

/// Size of a tile of scores.
struct BlockSizes {
  int64_t queries, keys;
};

/// Sets smaller tiles, for tests; the destructor restores the old size. Not thread-safe.
class ScopedBlockSizes {
 public:
  explicit ScopedBlockSizes(BlockSizes sizes);
  ~ScopedBlockSizes();
  ScopedBlockSizes(const ScopedBlockSizes&) = delete;
  ScopedBlockSizes& operator=(const ScopedBlockSizes&) = delete;

 private:
  BlockSizes previous_;
};

}  // namespace heed::detail
