// SPDX-License-Identifier: BSD-3-Clause
#include "support/measured_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <utility>
#include <vector>

namespace heed::bench {

namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class MeasuredWork : public c10d::Work {
 public:
  MeasuredWork(WorkPointer work, Traffic& traffic) : work_(std::move(work)), traffic_(traffic) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool wait(std::chrono::milliseconds timeout) override {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const bool done = work_->wait(timeout);
    traffic_.waited += std::chrono::duration<double>(Clock::now() - start).count();
    return done;
  }

 private:
  WorkPointer work_;
  Traffic& traffic_;
};

class MeasuredBackend : public c10d::Backend {
 public:
  MeasuredBackend(c10::intrusive_ptr<c10d::Backend> inner, Traffic& traffic)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), traffic_(traffic) {}

  const std::string getBackendName() const override { return "measured"; }

  WorkPointer send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    traffic_.bytes += static_cast<int64_t>(tensors.at(0).nbytes());
    return measured(inner_->send(tensors, to, tag));
  }
  WorkPointer recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return measured(inner_->recv(tensors, from, tag));
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                            const c10d::AllToAllOptions& options) override {
    const int64_t processes = getSize();  // of which one is this
    traffic_.bytes += static_cast<int64_t>(input.nbytes()) / processes * (processes - 1);
    return measured(inner_->alltoall_base(output, input, output_sizes, input_sizes, options));
  }
  WorkPointer allgather(std::vector<std::vector<at::Tensor>>& outputs,
                        std::vector<at::Tensor>& inputs,
                        const c10d::AllgatherOptions& options) override {
    return measured(inner_->allgather(outputs, inputs, options));
  }

 private:
  WorkPointer measured(WorkPointer work) const {
    return c10::make_intrusive<MeasuredWork>(std::move(work), traffic_);
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  Traffic& traffic_;
};

}  // namespace

distributed::ProcessGroup measure(const distributed::ProcessGroup& group, Traffic& traffic) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), group->getRank(),
                                                        group->getSize());
  result->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                     c10::make_intrusive<MeasuredBackend>(group->getBackend(at::kCPU), traffic));
  result->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return result;
}

}  // namespace heed::bench
