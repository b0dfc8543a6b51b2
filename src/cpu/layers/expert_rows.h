// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace heed::detail {

/// The places (row, choice) of T rows that chose K of N experts each, sorted by expert. Place
/// t * K + k is choice k of row t.
struct ExpertPlaces {
  /// `experts` int64 [T, K], each in [0, expert_num).
  ExpertPlaces(const at::Tensor& experts, int64_t expert_num);
  ExpertPlaces(int64_t top_k, at::Tensor order, std::vector<int64_t> counts);

  int64_t top_k;                ///< K
  at::Tensor order;             ///< int64 [T K]: the place at each sorted position
  std::vector<int64_t> counts;  ///< [N]: the places of each expert
};

/// The rows [T, E] that each expert computes, in the order of the places: tensors [counts[n], E].
std::vector<at::Tensor> gather_rows(const at::Tensor& rows, const ExpertPlaces& places);

/// The sum, over the places of each row, of the weight [T, K] times the row of the expert's output:
/// [T, E]. `outputs` are those of the experts, [counts[n], E], whose dtype the sum has; the weights
/// have compute_dtype of it.
at::Tensor weigh_rows(const std::vector<at::Tensor>& outputs, const at::Tensor& weights,
                      const ExpertPlaces& places);

}  // namespace heed::detail
