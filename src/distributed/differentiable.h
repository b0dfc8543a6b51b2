// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>
#include <heed/tensor_shard.h>

#include <cstdint>
#include <string>

/// Differentiable collectives, whose gradients are differentiable too. Every process must call
/// them, and their backward passes, in the same order.
///
/// A tensor is replicated (equal in all processes), partial (the sum over the processes is meant)
/// or split (each process has a part along a dimension). The gradient of a replicated tensor is
/// replicated if all processes use it alike, and partial if each uses it for its own part of the
/// work.

namespace heed::distributed::detail {

/// Partial to replicated: the sum. The gradient passes unchanged.
at::Tensor sum_parts(const at::Tensor& x, const ProcessGroup& group, const std::string& operation);

/// Partial to replicated: the sum. The gradient is that of the sum of all processes' losses, in
/// which each may use the result in its own way.
at::Tensor sum_for_losses(const at::Tensor& x, const ProcessGroup& group,
                          const std::string& operation);

/// Returns replicated x unchanged; its gradient is partial, and summed.
at::Tensor sum_gradient(const at::Tensor& x, const ProcessGroup& group,
                        const std::string& operation);

/// Partial to split along `dim`: this process's part of the sum. The gradients of the parts are
/// gathered.
at::Tensor sum_and_split(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                         const std::string& operation);

/// Split along `dim` to replicated. The gradient is partial; it is summed and split.
at::Tensor gather_for_parts(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                            const std::string& operation);

/// Replicated to split along `dim`. The gradients of the parts are gathered.
at::Tensor split(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                 const std::string& operation);

/// Split along `dim` to replicated. The gradient is replicated, and split.
at::Tensor gather(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                  const std::string& operation);

/// Returns x unchanged: a `shard` of a tensor, which several processes may hold copies of. Its
/// gradient is the sum of the copies' gradients.
at::Tensor sum_gradient_of_copies(const at::Tensor& x, const TensorShard& shard,
                                  const ProcessGroup& group, const std::string& operation);

/// tensor [P, ...] to [P, ...]: part i goes to process i, part i of the result comes from process
/// i.
at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                      const std::string& operation);

}  // namespace heed::distributed::detail
