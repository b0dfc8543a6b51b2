// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/block_mask.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>

/// Letters used for shapes in every header of heed:
///   B batch   H query heads   G key/value heads (H % G == 0)   L query length   S key length
///   D head dim of query and key   Dv head dim of value   E embedding dim   T, U packed lengths

namespace heed {

/// Which batch of a mask of n < B batches batch b of B has.
enum class MaskBatch {
  each,      ///< b: the mask has B batches, or 1
  cycled,    ///< b % n. Swin: n windows of each image
  repeated,  ///< b / (B / n). Beams: B / n of each sequence
};

/// Options of `attend`; without any, it computes softmax(scale * QK^T) V. Each setter returns the
/// options, so that calls can be chained.
///
/// @code
/// auto padding = heed::padding_mask(/*lengths=*/torch::tensor({10, 7}), /*key_length=*/10);
/// auto options = heed::AttendOptions().mask(padding).causal(true).window(4);
/// auto output = heed::attend(query, key, value, options);
/// @endcode
///
/// Masks, causal, windows, documents and lengths are intersected: a query sees a key only where all
/// of them allow it. Query i is at position p = i + S - L among the keys. The last query is thus at
/// the position of the last key, also when L != S. With lengths, p = i + key_lengths[b] -
/// query_lengths[b]; with `top_left`, p = i.
///
/// Hidden keys and values have no influence on any result. On the CPU that includes NaN and
/// infinity, and a block of 16 queries by 16 keys that is hidden completely is not computed.
struct HEED_API AttendOptions {
  /// Which keys a query may see: bool or integer, nonzero / true = may attend.
  /// [L, S], [B or 1, L or 1, S] or [B or 1, H or 1, L or 1, S]. See masks.h for builders.
  TORCH_ARG(std::optional<at::Tensor>, mask) = std::nullopt;
  /// Which keys a query may see, by a rule: [B or 1, H or 1, L, S], in less memory than a mask. Of
  /// `attend` and its _with_ sisters; not with parents. See block_mask.h. Dong et al. 2024
  /// (arXiv:2412.05496).
  TORCH_ARG(std::optional<BlockMask>, block_mask) = std::nullopt;
  /// Which of its batches batch b has, if the mask has fewer than B: [n, L, S] or
  /// [n, H or 1, L or 1, S], where B is a multiple of n. The same for `bias`.
  TORCH_ARG(MaskBatch, mask_batch) = MaskBatch::each;
  /// Floating-point tensor that is added to the scaled scores; shapes as for `mask`. May require
  /// grad.
  TORCH_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  /// A query at position p sees keys j <= p.
  TORCH_ARG(bool, causal) = false;
  /// Whether query i is at position p = i among the keys, also when L != S: SDPA's alignment of
  /// `causal`.
  TORCH_ARG(bool, top_left) = false;
  /// A query at position p sees at most this many keys, itself included: p - window < j <= p when
  /// causal, |p - j| < window when not. At least 1. Short for `left_window` and `right_window` of
  /// window - 1; not with these.
  HEED_NUMBER_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// A query at position p sees keys p - left_window <= j <= p + right_window; each at least 0. A
  /// side that is not given is unbounded. Beltagy et al. 2020 (arXiv:2004.05150).
  /// @{
  HEED_NUMBER_ARG(std::optional<int64_t>, left_window) = std::nullopt;
  HEED_NUMBER_ARG(std::optional<int64_t>, right_window) = std::nullopt;
  /// @}
  /// bool [S] or [B, S]: tokens that windows do not concern. As keys they are seen from everywhere;
  /// as queries, at a position in [0, S), they see everywhere. Causal, masks, documents and lengths
  /// still hide keys. Zaheer et al. 2020 (arXiv:2007.14062).
  TORCH_ARG(std::optional<at::Tensor>, global_tokens) = std::nullopt;
  /// int64 [B], 0 to L: how many of its queries each sequence has; L by default. The others have
  /// output 0, and their memory is never read.
  TORCH_ARG(std::optional<at::Tensor>, query_lengths) = std::nullopt;
  /// int64 [B], 0 to S: how many of its keys each sequence has; S by default. The memory of the
  /// others is never read.
  TORCH_ARG(std::optional<at::Tensor>, key_lengths) = std::nullopt;
  /// Probability in [0, 1) that a weight is set to 0; the others are scaled by 1 / (1 - dropout).
  /// `attend` applies it whenever it is above 0; modules pass 0 in eval mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// Factor on QK^T, not 0; 1 / sqrt(D) by default.
  HEED_NUMBER_ARG(std::optional<double>, scale) = std::nullopt;
  /// Bounds the scaled scores by softcap * tanh(score / softcap), before bias or ALiBi is added.
  /// From 1e-18 to 1e18; in float64 from 1e-150 to 1e150. Gemma Team 2024 (arXiv:2408.00118).
  HEED_NUMBER_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Floating-point [H] or [B, H]: slope * |p - j| is subtracted from the score of key j for a
  /// query at position p; see alibi.h. May require grad. Press et al. 2022 (arXiv:2108.12409).
  TORCH_ARG(std::optional<at::Tensor>, alibi_slopes) = std::nullopt;
  /// Floating-point [H, 2 R + 1]: element clamp(r_j - r_p, -R, R) + R is added to the scaled score
  /// of key j for a query at position p, where r are `relative_positions`. May require grad. Needs
  /// no tensor of L x S, as a bias does; see relative_position_bias.h. Raffel et al. 2020
  /// (arXiv:1910.10683).
  TORCH_ARG(std::optional<at::Tensor>, relative_bias) = std::nullopt;
  /// int64 [S] or [B, S]: the r of each position, for `relative_bias`; r_j = j by default. If it is
  /// given, the position of each query must be in [0, S). For windows of w x w tokens of an image,
  /// r = y (2 w - 1) + x.
  TORCH_ARG(std::optional<at::Tensor>, relative_positions) = std::nullopt;
  /// Floating-point [H]: for each head, the score of one additional key whose value is 0. The
  /// weights of a query then sum to less than 1, and to 0 if it sees no key. May require grad. Xiao
  /// et al. 2024 (arXiv:2309.17453).
  TORCH_ARG(std::optional<at::Tensor>, sinks) = std::nullopt;
  /// Integer [L] or [B, L]: the document of each query. A query sees only keys of its document.
  /// This needs no tensor of L x S, as a mask does.
  TORCH_ARG(std::optional<at::Tensor>, documents) = std::nullopt;
  /// Integer [S] or [B, S]: the document of each key; `documents` by default, and then L must equal
  /// S.
  TORCH_ARG(std::optional<at::Tensor>, key_documents) = std::nullopt;
  /// int64 [L] or [B, L]: the queries are drafted tokens, whose keys are the last L. parents[i] < i
  /// is the token that token i follows; -1: the key before them. A token sees what stands before
  /// the draft, the tokens that it follows, and itself; `window` counts along the path. Not with
  /// mask, block mask, documents or ALiBi. On another device than the CPU they are read, which
  /// waits for the device. Miao et al. 2024 (arXiv:2305.09781).
  TORCH_ARG(std::optional<at::Tensor>, parents) = std::nullopt;
  /// float32 [B, G, S], with int8 keys: key j is key_scales[j] * key[j]. Needs `value_scales`; see
  /// `quantize_int8`. Must not require grad.
  TORCH_ARG(std::optional<at::Tensor>, key_scales) = std::nullopt;
  /// float32 [B, G, S], with int8 values: value j is value_scales[j] * value[j]. Needs
  /// `key_scales`; see `quantize_int8`. Must not require grad.
  TORCH_ARG(std::optional<at::Tensor>, value_scales) = std::nullopt;
};

}  // namespace heed
