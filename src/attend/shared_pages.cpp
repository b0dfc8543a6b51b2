// SPDX-License-Identifier: BSD-3-Clause
#include "attend/shared_pages.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

// Sequences that begin alike form a tree, which is built from its root:
//
//   sequences      pages              nodes
//   A              1 2 3 4 5 6 7      [1 2] of A, B and C; [3 4 5 6] of A and B
//   B              1 2 3 4 5 6 8
//   C              1 2 9
//
//   open = all sequences, as one candidate without pages
//   for each candidate in `open`:
//     let its pages go on to the first one in which its sequences differ
//     if it has enough pages since the node above: it is a node
//     for each next page that several of them have: these are another candidate in `open`
//
// So each page of a sequence is compared once or twice.

namespace heed::detail {

namespace {

/// From so many shared keys on, reading them once is worth merging two results.
constexpr int64_t kWorthSharing = 256;

/// The pages of all sequences, and how many of them each may share.
struct Beginnings {
  const at::Tensor& table;
  const std::vector<int64_t>& most;

  const int64_t* pages(int64_t n) const {
    return table.const_data_ptr<int64_t>() + n * table.size(1);
  }
  /// The first page in which these sequences differ or which one of them may not share. They are
  /// known to be alike before the page `from`.
  int64_t common(const std::vector<int64_t>& sequences, int64_t from) const {
    const auto* first = pages(sequences.front());
    auto common = most[sequences.front()];
    for (auto n = sequences.begin() + 1; n != sequences.end(); ++n) {
      common = std::min(common, most[*n]);
      common = std::mismatch(first + from, first + common, pages(*n) + from).first - first;
    }
    return common;
  }
};

}  // namespace

std::vector<SharedPages> shared_pages(const at::Tensor& table, const std::vector<int64_t>& most,
                                      int64_t page_size) {
  const Beginnings beginnings{table, most};
  const auto is_worth = [&](int64_t pages) { return pages * page_size >= kWorthSharing; };
  std::vector<SharedPages> nodes, open = {{{}, 0, 0, 0}};
  for (size_t n = 0; n < most.size(); ++n) {
    if (is_worth(most[n])) open.front().sequences.push_back(static_cast<int64_t>(n));
  }
  for (size_t i = 0; i < open.size(); ++i) {
    auto candidate = std::move(open[i]);
    if (candidate.sequences.size() < 2) continue;
    candidate.last = beginnings.common(candidate.sequences, candidate.last);
    const bool is_node = is_worth(candidate.last - candidate.first);
    const SharedPages next{{},
                           is_node ? candidate.last : candidate.first,
                           candidate.last,
                           candidate.depth + (is_node ? 1 : 0)};
    std::unordered_map<int64_t, size_t> with_page;  // where `open` has a next page's candidate
    for (const auto n : candidate.sequences) {
      if (most[n] == candidate.last) continue;
      const auto page = beginnings.pages(n)[candidate.last];
      const auto [found, is_new] = with_page.try_emplace(page, open.size());
      if (is_new) open.push_back(next);
      open[found->second].sequences.push_back(n);
    }
    if (is_node) nodes.push_back(std::move(candidate));
  }
  return nodes;
}

}  // namespace heed::detail
