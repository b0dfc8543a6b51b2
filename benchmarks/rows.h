// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>

#include "support/row.h"

namespace heed::bench {

/// `attend` against at::scaled_dot_product_attention.
void add_attend_rows(Rows& rows);

/// `attend` with few queries over many keys, against at::scaled_dot_product_attention, repeated
/// keys and values, and a plain read of both.
void add_decode_rows(Rows& rows);

/// `attend` where LibTorch's fused CPU kernel lacks something or does too much: dropout, windows,
/// long prompts in chunks, float16, Dv != D, a learned bias.
void add_block_rows(Rows& rows);

/// `attend` over a range of lengths, causal and with a window, against SDPA and the textbook's
/// code.
void add_length_rows(Rows& rows);

/// `attend_varlen` on sequences end to end, against SDPA on the same padded to the longest.
void add_packed_rows(Rows& rows);

/// `attend_paged` against one block of keys for each sequence, and with a prompt that sequences
/// share against a copy for each.
void add_paged_rows(Rows& rows);

/// The projections of modules, forward and backward, against LibTorch's matrix products and, where
/// they have few rows, a plain read of the weights.
void add_linear_rows(Rows& rows);

/// The optimizer's step, alone and with gradients that are clipped, against LibTorch's.
void add_optimizer_rows(Rows& rows);

/// `linear_cross_entropy`, in inference and in training, against LibTorch's cross entropy of all
/// scores.
void add_loss_rows(Rows& rows);

/// `attend` with masks that hide whole tiles or nothing, against no mask, documents as a batch, and
/// SDPA.
void add_mask_rows(Rows& rows);

/// Options of `attend` that say which keys a query sees, and relative biases, against a mask or
/// bias of L x S that says the same.
void add_reach_rows(Rows& rows);

/// Mixtures of experts, in inference and in training, against a dense layer of as many
/// multiply-adds a token.
void add_expert_rows(Rows& rows);

/// The modules, in inference and in training, against the textbook's code and
/// torch::nn::MultiheadAttention.
void add_module_rows(Rows& rows);

/// `attend` on one device, in inference and in training: each kind of call beside SDPA's backends
/// and operators, and the most memory that it holds for long sequences. Sizes keep a GPU busy, or
/// are `tiny`.
void add_device_rows(Rows& rows, at::Device device, bool tiny);

/// Parts of `add_device_rows`: `attend_varlen` beside padded SDPA; decoding beside SDPA and a copy
/// of as many bytes.
/// @{
void add_packed_device_rows(Rows& rows, at::Device device, bool tiny);
void add_decoding_device_rows(Rows& rows, at::Device device, bool tiny);
/// @}

}  // namespace heed::bench
