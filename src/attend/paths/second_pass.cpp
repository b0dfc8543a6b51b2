// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/second_pass.h"

#include <torch/csrc/autograd/autograd.h>

namespace heed::detail {

at::Tensor stand_in(const at::Tensor& tensor, bool is_wanted, std::vector<at::Tensor>& inputs) {
  auto own = tensor.detach().view_as(tensor);
  if (is_wanted) inputs.push_back(own.requires_grad_());
  return own;
}

SecondPass second_pass(AttendFunction attend, const Problem& problem,
                       const WantedGradients& wanted) {
  const RecordingScope recording;
  auto own = problem;
  SecondPass pass;
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto& tensor = own.*kProblemTensors[i];
    if (tensor.defined()) tensor = stand_in(tensor, wanted[i], pass.inputs);
  }
  pass.attended = attend(own);
  return pass;
}

Gradients differentiate(const SecondPass& pass, const WantedGradients& wanted,
                        const std::vector<at::Tensor>& of_results, bool create_graph) {
  std::vector<at::Tensor> results, gradients;
  const at::Tensor candidates[] = {pass.attended.output, pass.attended.lse};
  for (size_t i = 0; i < of_results.size(); ++i) {
    if (!of_results[i].defined()) continue;
    results.push_back(candidates[i]);
    gradients.push_back(of_results[i]);
  }
  const auto found = torch::autograd::grad(results, pass.inputs, gradients, create_graph,
                                           create_graph, /*allow_unused=*/true);
  Gradients in_order;
  auto next = found.begin();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) in_order[i] = *next++;
  }
  return in_order;
}

}  // namespace heed::detail
