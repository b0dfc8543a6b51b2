// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/named_group.h"

#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

#include "distributed/collectives.h"

namespace heed::distributed::detail {

namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// Runs an operation; errors name it and the rank. It does not own the group: otherwise one of
/// Gloo's threads could destroy the group, and threads cannot join themselves.
struct Operation {
  template <typename Run>
  auto run(const Run& run) const {
    try {
      return run();
    } catch (const std::exception& error) {
      throw_failure(rank, size, name, error);
    }
  }

  int64_t rank, size;
  std::string name;
};

class NamedWork : public c10d::Work {
 public:
  NamedWork(Operation operation, WorkPointer work)
      : operation_(std::move(operation)), work_(std::move(work)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }

  bool wait(std::chrono::milliseconds timeout) override {
    return operation_.run([&] { return work_->wait(timeout); });
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = work_->getFuture();
    const auto type = future->elementType();
    return future->then(
        [operation = operation_](c10::ivalue::Future& done) {
          return operation.run([&] { return done.value(); });
        },
        type);
  }

 private:
  Operation operation_;
  WorkPointer work_;
};

class NamedBackend : public c10d::Backend {
 public:
  NamedBackend(ProcessGroup group, std::string subject)
      : Backend(group->getRank(), group->getSize()),
        group_(std::move(group)),
        subject_(std::move(subject)) {}

  const std::string getBackendName() const override { return "heed"; }

  WorkPointer allreduce(std::vector<at::Tensor>& tensors,
                        const c10d::AllreduceOptions& options) override {
    return name("all-reduce", [&] { return group_->allreduce(tensors, options); });
  }

  WorkPointer broadcast(std::vector<at::Tensor>& tensors,
                        const c10d::BroadcastOptions& options) override {
    return name("broadcast", [&] { return group_->broadcast(tensors, options); });
  }

 private:
  template <typename Start>
  WorkPointer name(const char* verb, const Start& start) {
    Operation operation{rank_, size_, fmt::format("{} of {}", verb, subject_)};
    auto work = run_named(*group_, operation.name, start);
    return c10::make_intrusive<NamedWork>(std::move(operation), std::move(work));
  }

  ProcessGroup group_;
  std::string subject_;
};

}  // namespace

ProcessGroup name_errors(const ProcessGroup& group, at::DeviceType device,
                         const std::string& subject) {
  auto named = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
  named->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<NamedBackend>(group, subject));
  named->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return named;
}

}  // namespace heed::distributed::detail
