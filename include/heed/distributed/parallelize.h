// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

namespace heed::distributed {

/// Options of `parallelize`.
struct HEED_API ParallelizeOptions {
  /// Whether, between the layers of a block, each process has its part of the sequence,
  /// [B, L / P, E], so that norms and dropout are split too: two reduce-scatters and two
  /// all-gathers in place of two all-reduces. L must be a multiple of P. Korthikanti et al. 2022
  /// (arXiv:2205.05198).
  TORCH_ARG(bool, sequence_parallel) = false;
};

/// Splits a module among the processes of a group, in place: tensor parallelism, Shoeybi et al.
/// 2019 (arXiv:1909.08053). Each process keeps its part of the weights, and computes its part of
/// each layer; a block exchanges activations twice in the forward and twice in the backward pass.
///
/// @code
/// torch::manual_seed(7);  // the same in all processes
/// heed::Decoder model(options);
/// heed::distributed::parallelize(*model, group);
/// torch::optim::Adam optimizer(model->parameters(), 1e-3);
/// model->loss(tokens, targets).backward();
/// optimizer.step();
/// @endcode
///
/// Split are, wherever they are in the module: `MultiHeadAttention` and `GroupQueryAttention` by
/// heads, `FeedForward` by its hidden layer, so `TransformerBlock` and `Encoder` too, and `Decoder`
/// also by its vocabulary. Key/value heads that are fewer than the processes are held by several.
/// All other modules stay whole.
///
/// All processes must hold the same module with the same parameters, and run it in the same order
/// on the same inputs. If there is dropout, LibTorch's generator must stay in the same state in all
/// of them: call torch::manual_seed, and draw the same numbers everywhere. Inputs, masks and biases
/// of the scores are whole, and so are outputs, with these exceptions: a Decoder returns scores [B,
/// L, V / P]; forward_with_weights returns the weights of this process's heads; caches hold this
/// process's heads; with sequence_parallel, a block or an attention or feed-forward layer outside
/// of an Encoder takes and returns [B, L / P, E], and only a memory is whole. forward_cached never
/// splits the sequence.
///
/// Parameters keep their names, and the tensors their identity; their gradients are dropped. A
/// split module cannot be cloned. Re-initializing it gives the parts of what one process would
/// draw. `options` of the attentions and feed-forward layers then describe this process's part;
/// those of blocks, Encoder and Decoder the whole.
///
/// Throws c10::ValueError in every process, and changes nothing, when a number of heads, a hidden
/// size or a vocabulary cannot be split evenly, when the processes' modules differ, when the module
/// contains an attention that cannot be split, or is split already.
HEED_API void parallelize(torch::nn::Module& module, const ProcessGroup& group,
                          const ParallelizeOptions& options = {});

}  // namespace heed::distributed
