// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/export.h>

#include <cstdint>

/// @file
/// Mask polarity in heed, everywhere: **nonzero / true = may attend**, as in
/// at::scaled_dot_product_attention. torch::nn::MultiheadAttention and TensorFlow's attention have
/// the opposite polarity (nonzero = hidden): convert their masks with `from_hidden`. Masks that are
/// added to scores, of 0 and -inf, are converted with `mask_from_additive`.
///
/// @code
/// auto causal = heed::causal_mask(/*query_length=*/10, /*key_length=*/10);  // [L, S]
/// auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);            // [B, 1, 1, S]
/// auto mask = heed::combine_masks({causal, padding});                       // [B, 1, L, S]
/// auto output = heed::attend(query, key, value, heed::AttendOptions().mask(mask));
/// @endcode
///
/// Shapes use the letters of attend_options.h. Every builder returns a bool tensor and throws
/// c10::ValueError when an argument is invalid.

namespace heed {

/// Causal mask: query i sees keys j <= i + S - L.
///
/// Returns [L, S].
HEED_API at::Tensor causal_mask(int64_t query_length, int64_t key_length,
                                at::Device device = at::kCPU);

/// Causal mask for queries at other positions: query i sees keys j <= i + offset. An offset of 0
/// aligns the first query with the first key, as at::scaled_dot_product_attention does.
///
/// Returns [L, S].
HEED_API at::Tensor causal_mask(int64_t query_length, int64_t key_length, int64_t offset,
                                at::Device device = at::kCPU);

/// Sliding-window mask: query i, at position p = i + S - L, sees keys p - window < j <= p if
/// causal, and |p - j| < window if not.
///
/// Returns [L, S].
HEED_API at::Tensor window_mask(int64_t query_length, int64_t key_length, int64_t window,
                                bool causal = true, at::Device device = at::kCPU);

/// Padding mask from lengths: in batch element b, only the first lengths[b] keys are seen. A length
/// must be at least 0 and at most key_length; this is checked on the CPU.
///
/// Shapes: lengths [B] integer; returns [B, 1, 1, key_length], on the device of lengths.
HEED_API at::Tensor padding_mask(const at::Tensor& lengths, int64_t key_length);

/// Padding mask from one value per key: key j of batch element b is seen if keys[b][j] is nonzero.
///
/// Shapes: keys [B, S] bool or integer; returns [B, 1, 1, S].
HEED_API at::Tensor key_padding_mask(const at::Tensor& keys);

/// Block-diagonal mask for documents packed in one sequence: a position sees the positions with the
/// same id.
///
/// Shapes: ids [L] or [B, L] integer; returns [L, L] or [B, 1, L, L].
HEED_API at::Tensor document_mask(const at::Tensor& ids);

/// Converts a mask whose nonzero elements are hidden to heed's polarity: a mask of TensorFlow
/// (which may be floating-point 0 and 1) or a bool mask of torch::nn::MultiheadAttention.
///
/// Shapes: any; returns the same shape.
/// Throws c10::ValueError when a floating mask holds other numbers than 0 and 1.
HEED_API at::Tensor from_hidden(const at::Tensor& hidden);

/// Converts a floating mask that is made to be added to scores, such as Python's
/// generate_square_subsequent_mask: 0 = may attend, -inf or the least number of its dtype = hidden.
/// With other numbers it is a bias; see AttendOptions. Its numbers are read, which waits for its
/// device.
///
/// Shapes: any; returns the same shape.
/// Throws c10::ValueError when the mask is not floating or holds other numbers.
HEED_API at::Tensor mask_from_additive(const at::Tensor& mask);

/// The intersection of masks: a query sees a key only where every mask allows it.
///
/// Shapes: each mask as in AttendOptions, where [B, L, S] means [B, 1, L, S]; returns the shape to
/// which they broadcast, with rank 2 if all masks have rank 2, else rank 4.
HEED_API at::Tensor combine_masks(at::TensorList masks);

}  // namespace heed
