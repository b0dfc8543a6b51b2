// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <optional>
#include <string_view>

namespace heed {

/// How the states of a sequence become one vector.
enum class Pooling {
  first,  ///< the first token that counts, such as BERT's [CLS]
  last,   ///< the last token that counts: of a decoder's, it alone has seen all others
  mean,   ///< the mean of the tokens that count. Reimers and Gurevych 2019 (arXiv:1908.10084)
};

/// Returns the pooling's name, such as "mean".
HEED_API std::string_view to_string(Pooling pooling);

/// Makes one vector of each sequence's hidden states: an embedding of the text, or the input of a
/// classifier.
///
/// @code
/// auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
/// auto states = encoder->forward(tokens, padding);                         // [B, L, E]
/// auto vectors = heed::pool_tokens(states, heed::Pooling::mean, padding);  // [B, E]
/// @endcode
///
/// Shapes:
///   x        [B, L, E]  floating
///   mask     [B or 1, L] or, as padding_mask and key_padding_mask return it, [B or 1, 1, 1, L];
///            bool or integer, nonzero = the token counts; by default, all tokens count
///   returns  [B, E]     of the dtype of x; 0 for a sequence none of whose tokens counts
/// Values of tokens that do not count make no difference. Sums are in float32, or in float64 for
/// float64.
/// Throws c10::ValueError when a shape, dtype or device is invalid.
HEED_API at::Tensor pool_tokens(const at::Tensor& x, Pooling pooling,
                                const std::optional<at::Tensor>& mask = {});

}  // namespace heed
