// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/transformer.h>

#include <memory>

namespace heed::detail {

/// block->forward(x, inputs), computed again in the backward pass, in the modes that the block is
/// in now. Errors name `function`.
at::Tensor forward_checkpointed(const char* function,
                                const std::shared_ptr<TransformerBlockImpl>& block,
                                const at::Tensor& x, const TransformerInputs& inputs);

}  // namespace heed::detail
