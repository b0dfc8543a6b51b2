// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <torch/nn/module.h>

/// Context parallel: each process holds a share of the sequence. Letters as in attend_options.h; P
/// is the number of processes, L and S are lengths of the whole sequences.

namespace heed::distributed {

/// Returns this process's share of a tensor, whose dimension `dim` is a sequence: its first and its
/// last of 2 P chunks counted from both ends, so that causal attention is the same work for all.
///
/// @code
/// auto own_tokens = heed::distributed::shard_sequence(tokens, /*dim=*/1, group);  // [B, L / P]
/// auto own_positions = heed::distributed::shard_sequence(torch::arange(length), 0, group);
/// @endcode
///
/// Gradients pass through. The result is contiguous.
/// Throws c10::ValueError when the dimension is out of range or its size is no multiple of 2 P: pad
/// the sequence, and hide the padding with a mask or as a document of its own.
HEED_API at::Tensor shard_sequence(const at::Tensor& tensor, int64_t dim,
                                   const ProcessGroup& group);

/// Returns the whole tensor, in the order of the sequence, from the shares of all processes; all
/// must call it. The gradient of each share is the sum of what all processes do with it.
/// Throws c10::ValueError when the dimension is out of range, or when shares do not fit together.
HEED_API at::Tensor unshard_sequence(const at::Tensor& tensor, int64_t dim,
                                     const ProcessGroup& group);

/// `attend`, for sequences that are sharded by `shard_sequence`. Keys and values go from process to
/// process while the share before is computed, and the parts are joined by their log-sum-exp (Liu
/// et al. 2023, arXiv:2310.01889). No process ever holds the keys of all. What causal or windows
/// hide from all queries of a process is not sent to it.
///
/// @code
/// auto options = heed::AttendOptions().causal(true);
/// auto output = heed::distributed::ring_attend(query, key, value, group, options);
/// @endcode
///
/// Shapes:
///   query    [B, H, L / P, D]
///   key      [B, G, S / P, D]
///   value    [B, G, S / P, Dv]
///   returns  [B, H, L / P, Dv]
/// Options have the meaning that they have in one process, on the whole sequence:
///   mask, bias  [L / P, S], [B, L / P, S] or [B, H, L / P, S]: the rows of this process's queries;
///               the columns are those of the whole sequence, in its order
///   documents   [L / P] or [B, L / P]; key_documents [S / P] or [B, S / P]
///   alibi_slopes [H] or [B, H], relative_bias [H, 2 R + 1] and sinks [H]: equal in all processes
/// Dropout is that of one process that has the random state of rank 0. It needs CPU tensors.
/// The gradient of bias, sinks, alibi_slopes and relative_bias is this process's contribution: sum
/// it over the processes.
/// All other options are refused: block_mask, global_tokens, query_lengths, key_lengths,
/// relative_positions, mask_batch, parents, key_scales and value_scales.
/// Second derivatives and forward-mode differentiation are not supported.
/// Throws c10::ValueError as `attend` does, and when processes disagree; c10::DistError when a
/// process fails.
HEED_API at::Tensor ring_attend(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const ProcessGroup& group,
                                const AttendOptions& options = {});

/// Like `ring_attend`, with heads exchanged instead of keys: each process computes the whole
/// sequence for some of the heads (Jacobs et al. 2023, arXiv:2309.14509). It sends less than
/// `ring_attend` if there are few processes or many key/value heads; each process then holds the
/// keys and values of the heads to which its query heads attend, and a mask or bias for all
/// queries. H must be a multiple of P. If G is not, as with fewer key/value heads than processes,
/// each key/value head is sent P / gcd(P, G) times, and the gradients of the copies are summed.
HEED_API at::Tensor ulysses_attend(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const ProcessGroup& group,
                                   const AttendOptions& options = {});

/// How processes that share a sequence attend to it.
enum class SequenceExchange {
  ring,     ///< `ring_attend`
  ulysses,  ///< `ulysses_attend`
};

/// Lets the self-attentions of a module work on sequences that the processes of a group share:
/// every `MultiHeadAttention` and `GroupQueryAttention` but the cross-attentions of blocks, and so
/// `TransformerBlock`, `Encoder`, `Decoder` and `TextEncoder`. They take and return this process's
/// share, and rotary and position embeddings are those of its place in the sequence. A null group
/// ends it.
///
/// @code
/// heed::distributed::share_sequence(*model, group);
/// auto scores = model->forward(heed::distributed::shard_sequence(tokens, 1, group));
/// @endcode
///
/// Masks and biases of the scores have this process's rows, and the columns of the whole sequence.
/// Documents, positions and rotary angles are those of its own tokens, as `shard_sequence` splits
/// them; where frequencies depend on the length, angles must be given in place of positions.
/// A mean over the tokens is the mean of the processes' means: let `DataParallel` average their
/// gradients. Random states may differ between the processes.
/// Throws c10::ValueError, and changes nothing, when the module has no such attention, or another
/// attention of heed, which cannot share a sequence.
HEED_API void share_sequence(torch::nn::Module& module, const ProcessGroup& group,
                             SequenceExchange exchange = SequenceExchange::ring);

}  // namespace heed::distributed
