// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heed::detail {

/// Runs experts, each a FeedForward, on their rows [rows, E]: as many as there are inputs, from the
/// `first` on. Returns an output for each, as `forward` would with its derivatives. An
/// expert without rows runs only if autograd records its weights: then their gradients are 0
/// instead of undefined.
std::vector<at::Tensor> run_experts(const torch::nn::ModuleList& experts,
                                    const std::vector<at::Tensor>& inputs, size_t first = 0);

/// Whether experts with so many rows should run side by side, a thread each: the thread with the
/// most rows has few more than its share.
bool rows_divide(const std::vector<int64_t>& rows, int64_t threads);

}  // namespace heed::detail
