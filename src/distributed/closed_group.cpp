// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/closed_group.h"

#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace heed::distributed::detail {

namespace {

/// Replaces a group's backends. Its operations are those of the base class, which throw "Backend
/// <name> does not support <operation>".
class ClosedBackend : public c10d::Backend {
 public:
  ClosedBackend(const c10d::ProcessGroup& group, std::string reason)
      : Backend(group.getRank(), group.getSize()), reason_(std::move(reason)) {}

  const std::string getBackendName() const override { return "closed (" + reason_ + ")"; }
  const std::string& reason() const { return reason_; }

 private:
  const std::string reason_;
};

c10::intrusive_ptr<ClosedBackend> closed_backend(c10d::ProcessGroup& group) {
  for (const auto device : group.getDeviceTypes()) {
    auto closed =
        c10::dynamic_intrusive_pointer_cast<ClosedBackend>(group.getBackend(device.type()));
    if (closed) return closed;
  }
  return nullptr;
}

/// Makes waiting operations of a Gloo backend fail, here and in other processes: Gloo closes all
/// connections of a context when one operation has timed out. An operation with a process that is
/// gone fails before it waits, so one with each process is tried.
void disconnect(c10d::ProcessGroupGloo& gloo) {
  constexpr int kUnusedTag = 0x6865'6564;
  const auto contexts = static_cast<int>(std::max<size_t>(gloo.getOptions()->devices.size(), 1));
  for (int other = 0; other < gloo.getSize(); ++other) {
    if (other == gloo.getRank()) continue;
    for (int i = 0; i < contexts; ++i) {
      try {
        std::vector<at::Tensor> tensors = {at::empty({1}, at::kByte)};
        gloo.recv(tensors, other, kUnusedTag + i)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        continue;  // it is meant to fail
      }
    }
  }
}

/// Aborts the work of a backend such as NCCL's. Backend has a virtual `abort` from LibTorch 2.7
/// on; before, this does nothing.
template <typename Backend>
auto abort_work(Backend& backend, int /*preferred*/) -> decltype(backend.abort()) {
  backend.abort();
}
template <typename Backend>
void abort_work(Backend& /*backend*/, long /*otherwise*/) {}

}  // namespace

void close_group(c10d::ProcessGroup& group, const std::string& reason) noexcept {
  try {
    if (group.getSize() == 1 || closed_backend(group)) return;
    const auto closed = c10::make_intrusive<ClosedBackend>(group, reason);
    std::vector<c10::intrusive_ptr<c10d::Backend>> open;
    for (const auto device : group.getDeviceTypes()) {
      open.push_back(group.getBackend(device.type()));
      group.setBackend(device.type(), c10d::ProcessGroup::BackendType::UNDEFINED, closed);
    }
    group.setDefaultBackend(c10d::ProcessGroup::BackendType::UNDEFINED);
    for (const auto& backend : open) {
      if (auto gloo = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupGloo>(backend)) {
        disconnect(*gloo);
      }
      abort_work(*backend, 0);
    }
  } catch (const std::exception&) {
    return;  // the error that led here matters more
  }
}

std::string reason_of_closing(c10d::ProcessGroup& group) {
  const auto closed = closed_backend(group);
  return closed ? closed->reason() : "";
}

void close_if_backward_fails(c10d::ProcessGroup& group, const std::string& operation) {
  thread_local std::pair<int, const c10d::ProcessGroup*> last = {-1, nullptr};
  const std::pair<int, const c10d::ProcessGroup*> now = {
      torch::autograd::get_current_graph_task_id(), &group};
  if (now.first < 0 || now == last || group.getSize() == 1) return;
  last = now;
  auto own = c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(&group);
  auto reason = fmt::format("a backward pass failed in process {} of {} after {}", group.getRank(),
                            group.getSize(), operation);
  auto closing = c10::make_scope_exit([own, reason] { close_group(*own, reason); });
  // The pass calls back at its end. If it fails, it drops the callback, which closes the group.
  auto watched = std::make_shared<decltype(closing)>(std::move(closing));
  torch::autograd::Engine::get_default_engine().queue_callback([watched] { watched->release(); });
}

}  // namespace heed::distributed::detail
