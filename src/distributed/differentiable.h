#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>

#include <string>

/// Collectives through which gradients pass. Every process must call them, and their backward
/// passes, in the same order.

namespace heed::distributed::detail {

/// The tensors of all processes, [P, ...]. A process's gradient is the sum of those of all.
at::Tensor gather_stack(const at::Tensor& tensor, const ProcessGroup& group,
                        const std::string& operation);

/// tensor [P, ...] to [P, ...]: part i goes to process i, part i of the result comes from process
/// i.
at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                      const std::string& operation);

}  // namespace heed::distributed::detail
