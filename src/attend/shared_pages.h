// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace heed::detail {

/// A node of the tree of sequences that begin alike: these sequences have the same pages
/// [first, last), and the same pages before.
struct SharedPages {
  std::vector<int64_t> sequences;  // their numbers, rising
  int64_t first, last;
  int64_t depth;  // how many nodes are above it
};

/// Finds the pages that several sequences share. Row n of `table`, int64 [N, n], contiguous, on the
/// CPU, has the pages of sequence n, which may share the first most[n] of them.
///
/// The nodes of a sequence follow each other from its first page on, and come in this order. Pages
/// with too few keys to be worth merging are in no node.
std::vector<SharedPages> shared_pages(const at::Tensor& table, const std::vector<int64_t>& most,
                                      int64_t page_size);

}  // namespace heed::detail
