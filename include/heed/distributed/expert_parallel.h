// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <heed/mixture_of_experts.h>
#include <torch/nn/module.h>

#include <optional>
#include <vector>

namespace heed::distributed {

/// Splits the experts of each `MixtureOfExperts` in a module among the processes of a group, in
/// place: expert parallelism, Lepikhin et al. 2020 (arXiv:2006.16668). Process r of P keeps experts
/// r N / P to (r + 1) N / P - 1. Each process routes its own tokens, sends their rows to the
/// processes that have the experts, and gets the outputs back: what one process computes for all
/// tokens together.
///
/// @code
/// torch::manual_seed(7);  // the same in all processes
/// heed::Decoder model(options);
/// heed::distributed::parallelize_experts(*model, group);
/// heed::distributed::DataParallel parallel(model, group);
/// @endcode
///
/// All processes must hold the same module with the same parameters. Each runs it on tokens of its
/// own, as many as it likes and also none; but all must call `forward` equally often and in the
/// same order, with autograd or without it, and run the backward pass if one does. Tokens are
/// exchanged twice in the forward and twice in the backward pass, their numbers once.
///
/// Routers, shared experts and everything else stay whole in each process, and the gradients of
/// their parameters are those of its own tokens. The gradients of an expert are those of all
/// processes' tokens: of the sum of the processes' losses. `DataParallel` of the same processes
/// averages all of them, those of experts too, and leaves the experts' values as they are. Without
/// it, sum the gradients of the whole parameters over the processes.
///
/// Parameters keep their names, and the tensors their identity; their gradients are dropped. Those
/// of other processes' experts are empty, [0, ...] or [0]. A split module cannot be cloned.
/// Re-initializing it gives the parts of what one process would draw. Experts with dropout draw in
/// the process that has them. `pack_weights` packs the experts of this process after the split.
///
/// Throws c10::ValueError in every process, and changes nothing, when the module has no
/// MixtureOfExperts or is split already, when a number of experts is no multiple of the number of
/// processes, when the processes' modules differ, when weights are packed, or when an expert has an
/// adapter or parameters of another layer. A call of a split mixture throws c10::ValueError in
/// every process when x is invalid in one or its dtype differs, and c10::DistError when a process
/// fails.
HEED_API void parallelize_experts(torch::nn::Module& module, const ProcessGroup& group);

/// Like heed::load_balancing_loss, for the routings of all processes of `group` together; equal in
/// all of them. All must call it, with as many experts. Its gradient is that of the sum of the
/// processes' losses, so that the average of `DataParallel` is the gradient of the whole loss.
///
/// @code
/// heed::RoutingRecord record;
/// auto loss = parallel.forward([&] {
///   const auto own_loss = model->loss(own_tokens, own_targets);
///   return own_loss + 0.01 * heed::distributed::load_balancing_loss(record.routings(), group);
/// });
/// @endcode
///
/// Throws c10::ValueError in every process if heed::load_balancing_loss throws in one;
/// c10::DistError when a process does not answer.
HEED_API at::Tensor load_balancing_loss(const std::vector<ExpertRouting>& routings,
                                        const ProcessGroup& group,
                                        const std::optional<at::Tensor>& mask = {});

/// Like heed::router_z_loss, for the routings of all processes: see `load_balancing_loss` above.
HEED_API at::Tensor router_z_loss(const std::vector<ExpertRouting>& routings,
                                  const ProcessGroup& group,
                                  const std::optional<at::Tensor>& mask = {});

}  // namespace heed::distributed
