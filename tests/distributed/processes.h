#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace heed::test {

using distributed::ProcessGroup;

/// Runs `work` in `size` new processes of one thread each, which form a group. Failed expectations
/// and exceptions of any of them fail the test. The calling process must not have used LibTorch's
/// threads before: all tensors belong into `work`.
void in_processes(int64_t size, const std::function<void(const ProcessGroup&)>& work,
                  std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// How one process ended.
struct Ended {
  int exit_code = 0;  ///< -signal if a signal ended it
  std::string output;
  double seconds = 0.0;
};

/// Runs `work(rank)` in new processes, without a group, and returns how each ended. An exception
/// that leaves `work` is printed and makes the exit code 1. `meanwhile` runs in this process when
/// all have started.
std::vector<Ended> run_processes(
    int64_t size, const std::function<void(int64_t)>& work,
    const std::function<void(const std::vector<pid_t>&)>& meanwhile = [](const auto&) {});

/// Runs processes as run_processes does, and gives each their common group.
std::vector<Ended> run_group(int64_t size, std::chrono::milliseconds timeout,
                             const std::function<void(const ProcessGroup&)>& work);

/// The sum of the tensors of all processes of the group.
at::Tensor sum_over_processes(const at::Tensor& tensor, const ProcessGroup& group);

/// A TCP port of the loopback device that is free now.
uint16_t free_port();

/// Sets the variables that torchrun would set for one machine.
void set_launch_environment(int64_t rank, int64_t size, uint16_t port);

}  // namespace heed::test
