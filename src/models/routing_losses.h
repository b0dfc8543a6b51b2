// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <heed/mixture_of_experts.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace heed::detail {

/// The sums of load_balancing_loss, over the rows that count.
struct BalanceSums {
  at::Tensor chosen;         ///< [N]: how many places each expert has
  at::Tensor probabilities;  ///< [N]: of the softmax of the logits
  int64_t rows = 0;
};

/// The sums of router_z_loss, over the rows that count.
struct LogitSums {
  at::Tensor squares;  ///< []: of the logsumexp of the logits
  int64_t rows = 0;
};

/// These sums. The errors are those of the losses, and begin with `function`.
/// @{
HEED_API BalanceSums balance_sums(const char* function, const std::vector<ExpertRouting>& routings,
                                  const std::optional<at::Tensor>& mask);
HEED_API LogitSums logit_sums(const char* function, const std::vector<ExpertRouting>& routings,
                              const std::optional<at::Tensor>& mask);
/// @}

}  // namespace heed::detail
