#pragma once

#include <heed/distributed/process_group.h>

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

/// The whole scores [..., V], in every process, of scores [..., V / P]; for choosing the next
/// token. Throws c10::DistError when a process fails.
HEED_API at::Tensor gather_scores(const at::Tensor& scores, const ProcessGroup& group);

}  // namespace heed::distributed
