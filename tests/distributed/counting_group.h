// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace heed::test {

using distributed::ProcessGroup;

/// The work of a group of CountingBackend: operations by name, and the bytes of this process's
/// inputs.
struct Counted {
  std::map<std::string, int64_t> operations;
  std::map<std::string, int64_t> bytes;
};

/// Passes operations on to another backend, and counts them.
class CountingBackend : public c10d::Backend {
 public:
  CountingBackend(c10::intrusive_ptr<c10d::Backend> inner, Counted& counted)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        counted_(counted) {}

  const std::string getBackendName() const override { return "counting"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    count("all_reduce", tensors);
    return inner_->allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    count("all_gather", inputs);
    return inner_->allgather(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    count("reduce_scatter", {input});
    return inner_->_reduce_scatter_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_sizes,
                                               std::vector<int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& options) override {
    count("all_to_all", {input});
    return inner_->alltoall_base(output, input, output_sizes, input_sizes, options);
  }

 private:
  void count(const char* name, const std::vector<at::Tensor>& tensors) {
    ++counted_.operations[name];
    for (const auto& tensor : tensors) {
      counted_.bytes[name] += static_cast<int64_t>(tensor.nbytes());
    }
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  Counted& counted_;
};

/// The processes of `group`, counting what they do. `counted` must outlive the result.
inline ProcessGroup counting_group(const ProcessGroup& group, Counted& counted) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), group->getRank(),
                                                        group->getSize());
  result->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                     c10::make_intrusive<CountingBackend>(group->getBackend(at::kCPU), counted));
  result->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return result;
}

}  // namespace heed::test
