// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/export.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heed::distributed {

/// The processes that work together. Any group of c10d will do, with or without
/// `init_process_group`.
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Options of `init_process_group`.
struct HEED_API InitOptions {
  /// How long an operation waits for the other processes before it fails. At least 1 ms.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(5);
  /// The address of this machine to which Gloo binds. By default the loopback device if all
  /// processes are on one machine, otherwise the address that reaches MASTER_ADDR. Nothing here
  /// authenticates or encrypts: name an address of a network that you trust.
  TORCH_ARG(std::optional<std::string>, address) = std::nullopt;
};

/// Joins the processes that a launcher such as `torchrun` has started, and returns the group of all
/// of them: Gloo for CPU tensors, and NCCL for CUDA tensors if LibTorch has it.
///
/// @code
/// auto group = heed::distributed::init_process_group();
/// fmt::print("process {} of {}\n", group->getRank(), group->getSize());
/// @endcode
///
/// Reads torchrun's environment variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and
/// LOCAL_RANK and LOCAL_WORLD_SIZE if they are set. Every process must have the same heed and
/// LibTorch.
/// The signal SIGPIPE is ignored from then on, unless the program handles it, as in Python: a
/// process that dies would otherwise end the others without an error. A program that makes a group
/// by itself must ignore it, too.
/// Throws c10::ValueError when a variable or an option is missing or invalid, or when WORLD_SIZE
/// differs between processes, and c10::DistError when a port is taken, a rank is taken, or a
/// process does not arrive within the timeout.
HEED_API ProcessGroup init_process_group(const InitOptions& options = {});

/// Returns the group of some processes of `group`, which all of these processes must call with the
/// same ranks, and the other processes not at all. Rank i of the new group is ranks[i] of `group`.
/// `name` must be the same in these processes, and new for each group.
/// Throws c10::ValueError when ranks do not contain this process once or are out of range, and
/// c10::DistError when a process does not arrive.
HEED_API ProcessGroup subgroup(const ProcessGroup& group, const std::vector<int64_t>& ranks,
                               const std::string& name);

}  // namespace heed::distributed
