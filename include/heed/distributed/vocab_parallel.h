// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/linear_cross_entropy.h>

#include <cstdint>

namespace heed::distributed {

/// The cross entropy of scores of which each process has those of its part of the vocabulary, as a
/// parallelized `Decoder` returns them: equals torch::nn::functional::cross_entropy of the whole
/// scores, which are never gathered. Three numbers for each token are exchanged.
///
/// @code
/// auto scores = model->forward(tokens);  // [B, L, V / P]
/// auto loss = heed::distributed::vocab_parallel_cross_entropy(scores, targets, group);
/// loss.backward();
/// @endcode
///
/// scores [..., V / P], floating; targets [...], int64, equal in all processes, each in [0, V) or
/// `ignore_index`, which counts for nothing. Returns the mean over the other targets, computed and
/// returned in float32, or in float64 for float64; NaN if there are none.
/// Throws c10::ValueError when a shape, dtype or target is invalid, and c10::DistError when a
/// process fails.
HEED_API at::Tensor vocab_parallel_cross_entropy(const at::Tensor& scores,
                                                 const at::Tensor& targets,
                                                 const ProcessGroup& group,
                                                 int64_t ignore_index = -100);

/// `linear_cross_entropy` of a weight of which each process has a shard of the rows, as a
/// parallelized `Decoder`'s head. `Decoder::loss` calls it. Neither the scores nor the weight are
/// gathered: for each row, its maximum and two or three sums are exchanged, once for each block of
/// rows, and in the backward pass the gradient of x.
///
/// @code
/// auto own = weight.chunk(group->getSize())[group->getRank()];  // [V / P, E]
/// auto loss = heed::distributed::vocab_parallel_linear_cross_entropy(x, own, targets, group);
/// loss.backward();
/// @endcode
///
/// x [N, E] and targets [N] are equal in all processes, and so is the result; weight [V / P, E] and
/// options.bias() [V / P] are those of this process; options.class_weight() [V] is whole. There is
/// no second derivative.
/// Throws c10::ValueError as `linear_cross_entropy` does, and c10::DistError when a process fails.
HEED_API at::Tensor vocab_parallel_linear_cross_entropy(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
    const ProcessGroup& group, const LinearCrossEntropyOptions& options = {});

/// The whole scores [..., V], in every process, of scores [..., V / P]; for choosing the next
/// token. Throws c10::DistError when a process fails.
HEED_API at::Tensor gather_scores(const at::Tensor& scores, const ProcessGroup& group);

}  // namespace heed::distributed
