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
//   open = all sequences, which have no pages in common yet
//   for each group that is open:
//     go on to the first page in which its sequences differ
//     if it has enough pages since the node above: it is a node
//     those with the same next page are a new open group
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
    auto group = std::move(open[i]);
    if (group.sequences.size() < 2) continue;
    group.last = beginnings.common(group.sequences, group.last);
    const bool is_node = is_worth(group.last - group.first);
    const SharedPages next{
        {}, is_node ? group.last : group.first, group.last, group.depth + (is_node ? 1 : 0)};
    std::unordered_map<int64_t, size_t> with_page;  // the place in `open` of a next page's group
    for (const auto n : group.sequences) {
      if (most[n] == group.last) continue;
      const auto page = beginnings.pages(n)[group.last];
      const auto [found, is_new] = with_page.try_emplace(page, open.size());
      if (is_new) open.push_back(next);
      open[found->second].sequences.push_back(n);
    }
    if (is_node) nodes.push_back(std::move(group));
  }
  return nodes;
}

}  // namespace heed::detail
