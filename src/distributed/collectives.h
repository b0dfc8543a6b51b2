// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "distributed/closed_group.h"

/// Operations of a group that block, and whose errors name the operation and the rank.

namespace heed::distributed::detail {

/// Throws c10::DistError with the operation, the rank and the cause, shortened to one line.
[[noreturn]] void throw_failure(int64_t rank, int64_t size, const std::string& operation,
                                const std::exception& cause);
/// Throws the same error, and closes the group.
[[noreturn]] void throw_failure(c10d::ProcessGroup& group, const std::string& operation,
                                const std::exception& cause);

/// Runs one operation. If it fails, throws as throw_failure does.
template <typename Run>
auto run_named(c10d::ProcessGroup& group, const std::string& operation, Run&& run) {
  close_if_backward_fails(group, operation);
  try {
    return run();
  } catch (const std::exception& error) {
    throw_failure(group, operation, error);
  }
}

/// Closes the group because an exchange has thrown `cause`.
void close_after(c10d::ProcessGroup& group, const std::string& exchange,
                 const std::exception& cause);

/// Runs an exchange: operations that belong together, and what this process computes between them.
/// If it throws, closes the group, because the others would wait for the rest.
template <typename Run>
auto run_exchange(const ProcessGroup& group, const std::string& exchange, Run&& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    close_after(*group, exchange, error);
    throw;
  }
}

/// Waits for work that has been started.
void wait(c10d::ProcessGroup& group, const std::string& operation,
          const c10::intrusive_ptr<c10d::Work>& work);

/// Starts to send the contiguous tensor, which must stay until the work is done; `tag` tells
/// messages between the same processes apart.
c10::intrusive_ptr<c10d::Work> send(const ProcessGroup& group, const std::string& operation,
                                    const at::Tensor& tensor, int64_t to, int tag);
c10::intrusive_ptr<c10d::Work> receive(const ProcessGroup& group, const std::string& operation,
                                       const at::Tensor& tensor, int64_t from, int tag);

/// Sums `tensor` over the processes, in place. It must be contiguous.
void all_reduce(const ProcessGroup& group, const std::string& operation, at::Tensor tensor);

/// Replaces `tensor` by the largest of the processes' numbers, element by element. It must be
/// contiguous.
void all_reduce_max(const ProcessGroup& group, const std::string& operation, at::Tensor tensor);

/// Sums x over the processes, and returns this process's of P equal parts along `dim`, which is at
/// least 0.
at::Tensor reduce_scatter(const ProcessGroup& group, const std::string& operation,
                          const at::Tensor& x, int64_t dim);

/// Copies the tensor of process `root` to all others. It must be contiguous.
void broadcast(const ProcessGroup& group, const std::string& operation, at::Tensor tensor,
               int64_t root = 0);

/// Copies tensors of several roots to all processes: tensors_of[r] from process r. All processes
/// have the same tensors, in the same order, of any dtype and layout.
void broadcast_all(const ProcessGroup& group, const std::string& operation,
                   const std::vector<std::vector<at::Tensor>>& tensors_of);

/// The tensors of all processes, in the order of their ranks. All must have the same shape.
std::vector<at::Tensor> all_gather(const ProcessGroup& group, const std::string& operation,
                                   const at::Tensor& tensor);

/// Sends part i of the contiguous tensor [P, ...] to process i; part i of the result comes from
/// it.
at::Tensor exchange(const ProcessGroup& group, const std::string& operation,
                    const at::Tensor& tensor);

/// Sends rows of the contiguous tensor [rows, ...]: the first send[0] to process 0, the next
/// send[1] to process 1, and so on. Returns the rows that come from the processes in the same way,
/// receive[i] from process i.
at::Tensor exchange_rows(const ProcessGroup& group, const std::string& operation,
                         const at::Tensor& tensor, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive);

/// The texts of all processes, in the order of their ranks.
std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& operation,
                                    const std::string& text);

/// Sends a text to process `to`, which must receive it.
void send_text(const ProcessGroup& group, const std::string& operation, const std::string& text,
               int64_t to);

/// Receives a text that process `from` sends.
std::string receive_text(const ProcessGroup& group, const std::string& operation, int64_t from);

/// Throws c10::ValueError in every process if `error` is not empty in one: its own error, or that
/// of the first other process that has one.
void throw_everywhere(const ProcessGroup& group, const char* function, const std::string& error);

/// Runs `check`. If it throws c10::ValueError in one process, all throw, so that none waits.
template <typename Check>
void check_everywhere(const ProcessGroup& group, const char* function, const Check& check) {
  std::string error;
  try {
    check();
  } catch (const c10::ValueError& refused) {
    error = refused.what_without_backtrace();
  }
  throw_everywhere(group, function, error);
}

/// A tensor's dtype, shape and memory layout, for `check_same`.
std::string describe(const at::Tensor& tensor);

/// Throws in every process if the text of one differs from that of rank 0: "<function>: <name> of
/// rank 2 (8) must equal that of rank 0 (7)". Where texts have lines, the first line that differs
/// is shown.
void check_same(const ProcessGroup& group, const char* function, const char* name,
                const std::string& text);

/// Compares texts that `describe` returns, as above. If it throws in one process, all throw, as
/// with check_everywhere.
void check_same(const ProcessGroup& group, const char* function, const char* name,
                const std::function<std::string()>& describe);

}  // namespace heed::distributed::detail
