// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/problem.h"

namespace heed::detail {

/// The number of the sequence to which each of `count` tokens belongs, by N + 1 offsets: int64
/// [count]. Tokens beyond the last offset get N.
at::Tensor sequence_of_tokens(const at::Tensor& offsets, int64_t count);

/// Copies keys and values out of pages, to [B, G, S, ..].
Problem without_pages(Problem problem);

/// Expresses packed or padded sequences by documents and positions, for paths that use LibTorch's
/// operators. Keys and values in pages are copied.
Problem with_documents(const Problem& problem);

/// A problem whose tokens are sorted by document, so that documents become packed sequences. Token
/// n was token order[n] of the B * L tokens before.
struct SortedDocuments {
  Problem problem;
  at::Tensor order;
};
/// Sorts the tokens of a problem by document. Queries and keys must have the same documents, and
/// there must be no window. Nothing waits for the device.
SortedDocuments sort_documents(const Problem& problem);

}  // namespace heed::detail
