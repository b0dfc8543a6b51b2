#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include <cstdint>
#include <vector>

namespace heed::detail {

/// Sequences with keys and values in pages and the same number of queries each.
struct PagedRun {
  at::Tensor query;              // [N, H, L, D]
  at::Tensor keys, values;       // [P, G, page, D] and [P, G, page, Dv]
  at::Tensor table;              // int64 [N, n] on the CPU: pages of each sequence
  std::vector<int64_t> lengths;  // keys of each sequence, at least L
  at::Tensor parents;            // int64 [N, L] on the CPU, or undefined: no drafts

  int64_t count() const { return query.size(0); }
  /// The sequences [first, first + count).
  PagedRun narrow(int64_t first, int64_t count) const;
};

/// Attention of a run, for inference: [N, H, L, Dv]. If neighboring sequences begin with the same
/// pages, these are read once for the queries of all of them, and the result is merged with the
/// attention to the other pages (Juravsky et al. 2024, arXiv:2402.05099).
at::Tensor attend_run(const PagedRun& run, const AttendOptions& options);

}  // namespace heed::detail
