// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace heed::detail {

/// The rows of a memory that the sequences of a step attend to. The queries of one row are brought
/// together, so that its keys are read once for all of them:
///
///   tokens of the step | beam 0 of row 0 | beam 0 of row 1 | beam 1 of row 0 |
///   queries of row 0   | beam 0 | beam 1 |
///   queries of row 1   | beam 0 |        |    a place without a query
///
/// M rows have up to L queries each.
class MemoryRows {
 public:
  /// Sequence n has row rows[n], and the step's tokens from offsets[n] to offsets[n + 1].
  MemoryRows(const std::vector<int64_t>& rows, const std::vector<int64_t>& offsets,
             at::Device device);

  /// M, the last row that is attended to, + 1.
  int64_t count() const { return count_; }

  /// int64 [M]: how many queries each row has; nullopt if all have L.
  const std::optional<at::Tensor>& query_lengths() const { return query_lengths_; }

  /// Heads [1, H, T, D] of the step's tokens as queries [M, H, L, D].
  at::Tensor gather(const at::Tensor& heads) const;

  /// Outputs [M, H, L, Dv] of these queries as heads [1, H, T, Dv].
  at::Tensor scatter(const at::Tensor& outputs) const;

 private:
  int64_t count_ = 0, longest_ = 0;  // M and L
  std::optional<at::Tensor> query_lengths_;
  at::Tensor places_;  // int64 [T]: of each token among M * L; undefined if it is arange(M * L)
};

}  // namespace heed::detail
