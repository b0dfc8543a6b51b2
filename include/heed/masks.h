#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/export.h>

#include <cstdint>

/// Mask polarity in heed, everywhere: **nonzero / true = may attend**, as in
/// at::scaled_dot_product_attention. torch::nn::MultiheadAttention has the opposite (true =
/// hidden): pass it `mask.logical_not()`.
///
/// Shapes use the letters of attend.h.

namespace heed {

/// Causal mask: query i sees keys j <= i + S - L.
///
/// Returns bool [L, S]. Throws c10::ValueError when a length is negative.
HEED_API at::Tensor causal_mask(int64_t query_length, int64_t key_length,
                                at::Device device = at::kCPU);

/// Sliding-window mask: with p = i + S - L, query i sees keys p - window < j <= p when causal,
/// |p - j| < window when not.
///
/// Returns bool [L, S]. Throws c10::ValueError when a length is negative or window < 1.
HEED_API at::Tensor window_mask(int64_t query_length, int64_t key_length, int64_t window,
                                bool causal = true, at::Device device = at::kCPU);

/// Padding mask from lengths: the keys of batch b beyond lengths[b] are hidden.
///
/// Shapes: lengths [B] integer; returns bool [B, 1, 1, key_length], on the device of lengths.
/// Throws c10::ValueError when lengths is not a vector of integers or key_length is negative.
HEED_API at::Tensor padding_mask(const at::Tensor& lengths, int64_t key_length);

}  // namespace heed
