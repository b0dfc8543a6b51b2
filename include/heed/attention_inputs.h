// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/attend_options.h>
#include <heed/export.h>
#include <heed/rotary_embedding.h>

#include <optional>
#include <utility>

namespace heed {

/// The inputs of a self-attention besides its tokens x [B, L, E]: `AttentionInputs` and
/// `TransformerInputs` have them. S is L.
template <typename Derived>
struct AttentionInputsBase {
 private:
  friend Derived;
  AttentionInputsBase() = default;
  template <typename Other>
  explicit AttentionInputsBase(const AttentionInputsBase<Other>& other)
      : mask_(other.mask()),
        mask_batch_(other.mask_batch()),
        bias_(other.bias()),
        documents_(other.documents()),
        positions_(other.positions()),
        rotary_angles_(other.rotary_angles()),
        query_lengths_(other.query_lengths()),
        key_lengths_(other.key_lengths()),
        global_tokens_(other.global_tokens()),
        relative_bias_(other.relative_bias()),
        relative_positions_(other.relative_positions()) {}

 public:
  /// As in AttendOptions.
  HEED_ARG(std::optional<at::Tensor>, mask) = std::nullopt;
  /// As in AttendOptions.
  HEED_ARG(MaskBatch, mask_batch) = MaskBatch::each;
  /// As in AttendOptions. A stack of blocks adds it in every layer.
  HEED_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  /// Integer [L] or [B, L]: the document of each token, which sees only tokens of its own; as in
  /// AttendOptions. Several documents in one row need no padding.
  HEED_ARG(std::optional<at::Tensor>, documents) = std::nullopt;
  /// int64 [L] or [B, L]: the position of each token, for rotary and position embeddings; 0 to
  /// L - 1 by default. For a rotary embedding with sections also [B or 1, L, axes]. With
  /// `documents`, positions that begin at 0 in each document give what each of them gives alone.
  /// Causal, windows and ALiBi count tokens, whatever their positions are.
  HEED_ARG(std::optional<at::Tensor>, positions) = std::nullopt;
  /// The angles of the rotary embedding, [B or 1, 1, L, R / 2], in place of those of `positions`.
  /// May require grad. A stack gives them to every block that has a rotary embedding.
  HEED_ARG(std::optional<RotaryAngles>, rotary_angles) = std::nullopt;
  /// As in AttendOptions.
  HEED_ARG(std::optional<at::Tensor>, query_lengths) = std::nullopt;
  /// As in AttendOptions. A padded batch has both lengths, with the same numbers.
  HEED_ARG(std::optional<at::Tensor>, key_lengths) = std::nullopt;
  /// As in AttendOptions.
  HEED_ARG(std::optional<at::Tensor>, global_tokens) = std::nullopt;
  /// As in AttendOptions. A stack of blocks adds it in every layer, as T5 does.
  HEED_ARG(std::optional<at::Tensor>, relative_bias) = std::nullopt;
  /// As in AttendOptions.
  HEED_ARG(std::optional<at::Tensor>, relative_positions) = std::nullopt;
};

/// The inputs of `MultiHeadAttention` and `GroupQueryAttention` in self-attention, besides x.
///
/// @code
/// // Two documents of 6 and 4 tokens in one row.
/// auto inputs = heed::AttentionInputs()
///                   .documents(torch::tensor({0, 0, 0, 0, 0, 0, 1, 1, 1, 1}))
///                   .positions(torch::tensor({0, 1, 2, 3, 4, 5, 0, 1, 2, 3}));
/// auto y = attention->forward(x, inputs);  // x [B, 10, E]
/// @endcode
struct HEED_API AttentionInputs : AttentionInputsBase<AttentionInputs> {
  /// No further inputs, or only a mask.
  /// @{
  AttentionInputs() = default;
  /* implicit */ AttentionInputs(std::nullopt_t /*mask*/) {}
  /* implicit */ AttentionInputs(std::optional<at::Tensor> mask) { this->mask(std::move(mask)); }
  /* implicit */ AttentionInputs(at::Tensor mask) { this->mask(std::move(mask)); }
  /// @}
  /// The part of other inputs, such as a TransformerInputs, that self-attention reads.
  template <typename Other>
  explicit AttentionInputs(const AttentionInputsBase<Other>& other) : AttentionInputsBase(other) {}
};

}  // namespace heed
