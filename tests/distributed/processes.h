// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace heed::test {

using distributed::ProcessGroup;

/// The timeout of operations that must fail, which tests wait for. It must suffice for processes to
/// meet, however busy the machine is.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::seconds kBrief(8);
#else
constexpr std::chrono::seconds kBrief(3);
#endif
/// The seconds within which processes have ended that wait for kBrief, or need not wait.
constexpr auto kSoon = static_cast<double>(5 * kBrief.count());
/// The timeout of everything else, far longer than kSoon, which tells errors that come at once from
/// those of a timeout.
constexpr std::chrono::seconds kPatient(120);

/// Runs `work` in `size` new processes of one thread each, which form a group. Failed expectations
/// and exceptions of any of them fail the test. The calling process must not have used LibTorch's
/// threads before: all tensors belong into `work`.
void in_processes(int64_t size, const std::function<void(const ProcessGroup&)>& work);

/// How one process ended.
struct Ended {
  int exit_code = 0;  ///< -signal if a signal ended it
  std::string output;
  double seconds = 0.0;
};

/// The work of the calling process when all of its new processes have started.
using Meanwhile = std::function<void(const std::vector<pid_t>&)>;

/// Runs `work(rank)` in new processes, without a group, and returns how each ended. They begin when
/// all have started. An exception that leaves `work` is printed and makes the exit code 1.
std::vector<Ended> run_processes(
    int64_t size, const std::function<void(int64_t)>& work,
    const Meanwhile& meanwhile = [](const auto&) {});

/// Runs processes as run_processes does, and gives each their common group. They have kPatient to
/// join it; afterwards, its operations wait for `timeout`.
std::vector<Ended> run_group(
    int64_t size, const std::function<void(const ProcessGroup&)>& work,
    std::chrono::milliseconds timeout = kPatient, const Meanwhile& meanwhile = [](const auto&) {});

/// Makes the subgroups of `group` that are made from now on wait for `timeout`.
void limit_subgroups(const ProcessGroup& group, std::chrono::milliseconds timeout);

/// Something that happens in one process, and for which others wait. It must be constructed before
/// these processes start.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void tell() const;
  /// Fails the test if kPatient passes before.
  void await() const;

 private:
  std::array<int, 2> pipe_{};
};

/// The sum of the tensors of all processes of the group.
at::Tensor sum_over_processes(const at::Tensor& tensor, const ProcessGroup& group);

/// A TCP port of the loopback device, at which a group can be made. The system gives it to nobody
/// who asks for any port while this exists.
class Port {
 public:
  Port();
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  uint16_t number() const { return number_; }

 private:
  int socket_;
  uint16_t number_ = 0;
};

/// Sets the variables that torchrun would set for one machine.
void set_launch_environment(int64_t rank, int64_t size, uint16_t port);

}  // namespace heed::test
