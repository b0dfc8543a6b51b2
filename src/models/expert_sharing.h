// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <heed/tensor_shard.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace heed::detail {

/// Rows on their way to N experts.
struct ExpertRows {
  at::Tensor rows;              ///< [R, E], those of one expert after those of the one before
  std::vector<int64_t> counts;  ///< [N]: how many each expert has
};

/// The interface of a list in the place of a mixture's experts, of which each of several processes
/// has some. The list has all N experts, but the parameters of other processes' experts are empty.
/// Its class derives from torch::nn::ModuleListImpl too.
class HEED_API ExpertSharing {
 public:
  virtual ~ExpertSharing() = default;

  /// The experts that this process has.
  virtual TensorShard part() const = 0;

  /// Returns the rows of the experts' outputs, [R, E], in the order of the rows that `prepare`
  /// returns. Every process must call it, also with R = 0. `compute` runs this process's experts,
  /// each on the rows [rows, E] that all processes have for it. If `prepare` throws c10::ValueError
  /// in one process, all throw; any other exception closes the group.
  virtual at::Tensor run(
      const std::function<ExpertRows()>& prepare,
      const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& compute)
      const = 0;
};

/// The interface of a mixture's experts; null if this process has all of them.
inline const ExpertSharing* sharing_of(const torch::nn::ModuleList& experts) {
  return dynamic_cast<const ExpertSharing*>(experts.get());
}

/// Whether this process has expert i.
inline bool has_expert(const ExpertSharing* sharing, size_t i) {
  if (sharing == nullptr) return true;
  const auto part = sharing->part();
  const auto index = static_cast<int64_t>(i);
  return index >= part.first && index < part.first + part.size;
}

}  // namespace heed::detail
