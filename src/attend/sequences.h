#pragma once

#include "core/problem.h"

namespace heed::detail {

/// The sequence of each of `count` tokens between N + 1 offsets: int64 [count]; N beyond the last.
at::Tensor sequence_of_tokens(const at::Tensor& offsets, int64_t count);

/// The same call with keys and values in copies [B, G, S, ..] instead of pages.
Problem without_pages(Problem problem);

/// The same call with packed or padded sequences told apart by documents and positions, which
/// LibTorch's operators can read.
Problem with_documents(const Problem& problem);

/// The same call with documents as sequences one after the other, sorted by document: `order`
/// [B * L] is where each token of the result stood. Takes a call whose queries and keys have the
/// same documents, without a window. Nothing waits for the device.
struct SortedDocuments {
  Problem problem;
  at::Tensor order;
};
SortedDocuments sort_documents(const Problem& problem);

}  // namespace heed::detail
