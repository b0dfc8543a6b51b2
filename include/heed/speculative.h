// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <cstdint>
#include <vector>

namespace heed {

/// The part of a draft that the model itself would have generated.
struct HEED_API AcceptedDraft {
  /// Which of the drafted tokens, rising, the root first.
  std::vector<int64_t> path;
  /// The model's own token after them.
  int64_t next = 0;
};

/// Speculative decoding: of a tree of drafted tokens, accepts the path that the model itself chose,
/// so that one step of the model gives one token or more. Leviathan et al. 2023 (arXiv:2211.17192),
/// Miao et al. 2024 (arXiv:2305.09781).
///
/// @code
/// // The newest token is 7. After it a draft: 1 and then 2, or 3.
/// auto tokens = torch::tensor({7, 1, 2, 3});
/// std::vector<int64_t> parents = {-1, 0, 1, 0};
/// const auto first = cache.length(sequence);
/// auto step = cache.append({sequence}, {4}, parents);
/// auto scores = model->forward_cached(tokens.unsqueeze(0), step)[0];  // [4, V]
/// auto accepted = heed::accept_draft(tokens, parents, scores.argmax(1));
/// for (auto& token : accepted.path) token += first;
/// cache.keep(sequence, accepted.path);  // the next step begins with accepted.next
/// @endcode
///
/// The first token is the root and is always accepted. The model's choice after a token may be the
/// most probable one, or one drawn by its probability: the text is what decoding token by token
/// with these choices gives, whatever the draft.
///
/// Shapes:
///   tokens    [L]  int64: the newest token, then the draft
///   parents   [L]  the token that each one follows, before it; -1 for the first
///   chosen    [L]  int64: the model's choice after each token
/// Throws c10::ValueError when a dtype, shape or parent is invalid.
HEED_API AcceptedDraft accept_draft(const at::Tensor& tokens, at::IntArrayRef parents,
                                    const at::Tensor& chosen);

}  // namespace heed
