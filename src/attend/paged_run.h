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
  at::Tensor table;              // int64 [N, n] on the CPU: pages of each
  std::vector<int64_t> lengths;  // keys of each, no fewer than L
  at::Tensor parents;            // int64 [N, L] on the CPU if queries are drafts; else undefined

  int64_t count() const { return query.size(0); }
  /// `count` of the sequences, from `first` on.
  PagedRun part(int64_t first, int64_t count) const;
};

/// Returns [N, H, L, Dv], for inference. Pages with which neighbors begin are read once for all of
/// their queries, and their parts of the attention merged (Juravsky et al. 2024, arXiv:2402.05099).
at::Tensor attend_run(const PagedRun& run, const AttendOptions& options);

}  // namespace heed::detail
