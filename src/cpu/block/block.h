#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "core/problem.h"
#include "cpu/capability.h"

namespace heed::detail {

/// Attention over blocks of queries and blocks of keys, on the CPU: scores exist one tile at a time
/// (Dao et al. 2022, arXiv:2205.14135). Takes every Problem that is not empty. Dropout's draws
/// depend on `dropout_key` and the place (b, h, i, j) of the weight, so that no result depends on
/// the number of threads.

struct BlockOutput {
  at::Tensor output;  // [B, H, L, Dv]
  // [B, H, L] in the type computed in: each query's largest score and 1 over the sum of
  // exp(score - largest), both 0 where there are no keys. In one number, largest + log(sum), a
  // large score would round the sum away.
  at::Tensor largest, inverse_sum;
  at::Tensor weights;  // [B, H, L, S], undefined unless asked for
  // [B, H, L, Dv] in the output's dtype: what rounding took from the output, for the backward pass,
  // which takes near numbers from each other. Undefined where nothing was rounded.
  at::Tensor output_rest;
};

enum class BlockUse {
  inference,  ///< the output alone; see multiplies_pairs
  training,   ///< block_backward follows, and needs weights that are those it computes anew
  weights,    ///< inference without dropout, which gives the weights too
};

/// Whether inference multiplies the dtype as it is: bfloat16, where the processor can.
inline bool multiplies_pairs(at::ScalarType dtype) {
  return dtype == at::kBFloat16 && instruction_set().multiplies_bfloat16;
}

BlockOutput block_forward(const Problem& problem, uint64_t dropout_key, BlockUse use);

/// In the order of kProblemTensors.
struct BlockGradients {
  at::Tensor query, key, value, bias, sinks;
};

/// Which of the gradients are computed; others are undefined.
using WantedGradients = std::array<bool, kGradientTensors>;

BlockGradients block_backward(const Problem& problem, uint64_t dropout_key,
                              const BlockOutput& forward, const at::Tensor& output_gradient,
                              const WantedGradients& wanted);

/// Tile of scores.
struct BlockSizes {
  int64_t queries, keys;
};

/// Smaller tiles, for tests; restored when the object dies. Not thread-safe.
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
