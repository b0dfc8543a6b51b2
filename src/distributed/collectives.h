#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>

#include <string>
#include <vector>

#include "core/error.h"

/// Operations of a group that block, and whose errors name the operation and the rank.

namespace heed::distributed::detail {

/// Throws c10::DistError with the operation, the rank and the cause, shortened to one line.
[[noreturn]] void throw_failure(const c10d::ProcessGroup& group, const std::string& operation,
                                const std::exception& cause);

/// Runs one operation; see throw_failure.
template <typename Run>
auto run_named(const c10d::ProcessGroup& group, const std::string& operation, Run&& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    throw_failure(group, operation, error);
  }
}

/// Waits for work that has been started.
void wait(const c10d::ProcessGroup& group, const std::string& operation,
          const c10::intrusive_ptr<c10d::Work>& work);

/// Starts to send the contiguous tensor, which must stay until the work is done; `tag` tells
/// messages between the same processes apart.
c10::intrusive_ptr<c10d::Work> send(const ProcessGroup& group, const std::string& operation,
                                    const at::Tensor& tensor, int64_t to, int tag);
c10::intrusive_ptr<c10d::Work> receive(const ProcessGroup& group, const std::string& operation,
                                       const at::Tensor& tensor, int64_t from, int tag);

/// What `send` has sent since the process began.
int64_t bytes_sent();

/// Sums `tensor` over the processes, in place. It must be contiguous.
void all_reduce(const ProcessGroup& group, const std::string& operation, at::Tensor tensor);

/// Replaces `tensor` by the largest of the processes' numbers, element by element. It must be
/// contiguous.
void all_reduce_max(const ProcessGroup& group, const std::string& operation, at::Tensor tensor);

/// This process's of P equal parts, along `dim` from 0 on, of the sum of x over the processes.
at::Tensor reduce_scatter(const ProcessGroup& group, const std::string& operation,
                          const at::Tensor& x, int64_t dim);

/// Copies the tensor of process `root` to all others. It must be contiguous.
void broadcast(const ProcessGroup& group, const std::string& operation, at::Tensor tensor,
               int64_t root = 0);

/// The tensors of all processes, in the order of their ranks. All must have the same shape.
std::vector<at::Tensor> all_gather(const ProcessGroup& group, const std::string& operation,
                                   const at::Tensor& tensor);

/// Part i of the contiguous tensor [P, ...] goes to process i; part i of the result comes from it.
at::Tensor exchange(const ProcessGroup& group, const std::string& operation,
                    const at::Tensor& tensor);

/// The texts of all processes, in the order of their ranks.
std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& operation,
                                    const std::string& text);

/// Throws in every process if one describes itself differently from rank 0: "<function>: <name> of
/// rank 2 (8) must equal that of rank 0 (7)". Where texts have lines, the first line that differs
/// is shown.
void check_same(const ProcessGroup& group, const char* function, const char* name,
                const std::string& text);

}  // namespace heed::distributed::detail
