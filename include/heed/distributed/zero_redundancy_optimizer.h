// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace heed::distributed {

/// An optimizer whose state is split among the processes of a group: each process updates its share
/// of the parameters, keeps the state of this share only, and sends the updated parameters to the
/// others. With P processes, each keeps about 1/P of the state; the numbers are those of the
/// optimizer alone, bit for bit. ZeRO, stage 1: Rajbhandari et al. 2020 (arXiv:1910.02054).
///
/// @code
/// heed::distributed::DataParallel parallel(model, group);
/// heed::distributed::ZeroRedundancyOptimizer optimizer(
///     heed::FusedAdamW(model->parameters(), torch::optim::AdamWOptions(1e-3)), group);
/// parallel.forward([&] { return model->forward(x).square().mean(); }).backward();
/// heed::clip_grad_norm_(model->parameters(), 1.0);
/// optimizer.step();
/// @endcode
///
/// All processes must hold the same parameters and, as after `DataParallel`'s backward pass, the
/// same gradients. Each parameter is updated as a whole by one process, also if it stands twice.
/// Learning rates are changed as usual, in `param_groups()` or by a scheduler. `state()` is empty:
/// see `local`.
class HEED_API ZeroRedundancyOptimizer : public torch::optim::Optimizer {
 public:
  /// Takes an optimizer of all parameters, and keeps the state of this process's share. The
  /// optimizer must update each parameter by itself.
  /// Throws c10::ValueError in all processes when the optimizer is null, has no parameters or is
  /// LBFGS, or when it differs from that of rank 0 in its class, its learning rates, or its
  /// parameters' order, shapes or dtypes; c10::DistError when a process does not answer.
  ZeroRedundancyOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer, ProcessGroup group);

  /// Like the constructor above, for an optimizer that has just been made.
  template <typename Derived,
            typename = std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, Derived>>>
  ZeroRedundancyOptimizer(Derived optimizer, ProcessGroup group)
      : ZeroRedundancyOptimizer(
            std::unique_ptr<torch::optim::Optimizer>(new Derived(std::move(optimizer))),
            std::move(group)) {}

  /// Updates all parameters in all processes, which must call it together. Returns what `closure`
  /// returns. Throws c10::DistError when a process does not answer.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Writes the whole state into the archive of rank 0, as the optimizer alone would; the archives
  /// of the other processes stay empty. All processes must call it together. Throws c10::DistError
  /// when a process does not answer.
  void save(torch::serialize::OutputArchive& archive) const override;

  /// Reads the whole state, which the optimizer alone or any number of processes saved, and keeps
  /// this process's share. Each process must call it. Throws c10::Error when the archive does not
  /// fit.
  void load(torch::serialize::InputArchive& archive) override;

  /// The optimizer of this process's share, with its state.
  const torch::optim::Optimizer& local() const { return *local_; }

 private:
  HEED_LOCAL void copy_options() const;
  HEED_LOCAL void select(std::optional<int64_t> rank, bool to_load = false) const;
  HEED_LOCAL void keep_own() const;

  ProcessGroup group_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  int64_t number_of_parameters_ = 0;
  std::vector<std::vector<int64_t>> owners_;         // of each parameter of each group
  std::vector<std::vector<at::Tensor>> tensors_of_;  // those of each process
};

}  // namespace heed::distributed
