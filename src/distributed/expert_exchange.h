// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <vector>

/// Rows on their way to the processes that have their experts, and back:
///
///   dispatch:  rows, by expert  -> the rows of each own expert, by the process they come from
///     backward: combine
///   combine:   the experts' outputs  -> rows, as they were dispatched
///     backward: dispatch
///
/// Each is one all-to-all, in which each process sends and receives as many rows as there are.

namespace heed::distributed::detail {

/// Which rows go where in one call of a mixture.
struct ExpertExchange : torch::CustomClassHolder {
  ProcessGroup group;
  std::string function;                       ///< begins the names of operations
  std::vector<int64_t> sent;                  ///< [P]: this process's rows for each process
  std::vector<std::vector<int64_t>> arrived;  ///< [P][n]: each process's rows for the own experts
  /// Whether the gradients of the experts' parameters are averages over the processes instead of
  /// sums. Those of the rows stay the same.
  bool average = false;
  /// Whether a process differentiates the rows, or the outputs. If one does, all record the
  /// exchange, so that all take part in that of the gradients.
  bool records_rows = false, records_outputs = false;
};

using ExpertExchangePtr = c10::intrusive_ptr<ExpertExchange>;

/// rows [R, E] to n tensors [rows, E].
std::vector<at::Tensor> dispatch(const at::Tensor& rows, const ExpertExchangePtr& exchange);

/// n tensors [rows, E] to rows [R, E].
at::Tensor combine(const std::vector<at::Tensor>& outputs, const ExpertExchangePtr& exchange);

}  // namespace heed::distributed::detail
