// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/data_parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>

#include "support/seeds.h"

namespace heed::test::of_data_parallel {

using distributed::DataParallel;
using distributed::DataParallelOptions;
using torch::nn::Linear;
using torch::nn::Sequential;

/// Several buckets, also of a small module.
inline DataParallelOptions small_buckets() { return DataParallelOptions().bucket_bytes(1000); }

inline Sequential make_sequential(uint64_t seed) {
  torch::manual_seed(moved(seed));
  return Sequential(Linear(8, 32), torch::nn::Tanh(), Linear(32, 32), torch::nn::Tanh(),
                    Linear(32, 3));
}

/// Three branches, of which a forward pass takes one.
class BranchesImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x, int64_t branch) {
    return (branch == 0 ? first : branch == 1 ? second : third)->forward(x);
  }
  Linear first = register_module("first", Linear(3, 2));
  Linear second = register_module("second", Linear(3, 2));
  Linear third = register_module("third", Linear(3, 2));
};
TORCH_MODULE(Branches);

}  // namespace heed::test::of_data_parallel
