#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/export.h>

#include <cstdint>

/// @file
/// Mask polarity in heed, everywhere: **nonzero / true = may attend**, as in
/// at::scaled_dot_product_attention. torch::nn::MultiheadAttention and TensorFlow's attention have
/// the opposite (nonzero = hidden): pass their masks through `from_hidden`.
///
/// Shapes use the letters of attend.h. Every builder returns bool and throws c10::ValueError when
/// an argument has no meaning.

namespace heed {

/// Causal mask: query i sees keys j <= i + S - L.
///
/// Returns [L, S].
HEED_API at::Tensor causal_mask(int64_t query_length, int64_t key_length,
                                at::Device device = at::kCPU);

/// Causal mask of queries that stand elsewhere: query i sees keys j <= i + offset. An offset of 0
/// aligns the first query with the first key, as at::scaled_dot_product_attention does.
///
/// Returns [L, S].
HEED_API at::Tensor causal_mask(int64_t query_length, int64_t key_length, int64_t offset,
                                at::Device device = at::kCPU);

/// Sliding-window mask: with p = i + S - L, query i sees keys p - window < j <= p when causal,
/// |p - j| < window when not.
///
/// Returns [L, S].
HEED_API at::Tensor window_mask(int64_t query_length, int64_t key_length, int64_t window,
                                bool causal = true, at::Device device = at::kCPU);

/// Padding mask from lengths: the keys of batch b beyond lengths[b] are hidden. A length is at
/// least 0 and at most key_length, which is checked on the CPU.
///
/// Shapes: lengths [B] integer; returns [B, 1, 1, key_length], on the device of lengths.
HEED_API at::Tensor padding_mask(const at::Tensor& lengths, int64_t key_length);

/// Padding mask from one value a key: batch b's key j is seen where keys[b][j] is nonzero.
///
/// Shapes: keys [B, S] bool or integer; returns [B, 1, 1, S].
HEED_API at::Tensor key_padding_mask(const at::Tensor& keys);

/// Block-diagonal mask of documents packed in one sequence: positions see those of the same id.
///
/// Shapes: ids [L] or [B, L] integer; returns [L, L] or [B, 1, L, L].
HEED_API at::Tensor document_mask(const at::Tensor& ids);

/// The mask whose nonzero elements are hidden, in heed's polarity: TensorFlow's (floating 0 and 1
/// too) and torch::nn::MultiheadAttention's.
///
/// Shapes: any; returns the same shape.
HEED_API at::Tensor from_hidden(const at::Tensor& hidden);

/// The intersection: a query sees a key where every mask lets it.
///
/// Shapes: each as AttendOptions takes a mask, [B, L, S] meaning [B, 1, L, S]; returns the shape to
/// which they broadcast, of rank 2 if all have rank 2, else 4.
HEED_API at::Tensor combine_masks(at::TensorList masks);

}  // namespace heed
