// SPDX-License-Identifier: BSD-3-Clause
#include "attend_calls.h"

#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

namespace heed::bench {

AttendCall make_call(const CallShape& s, bool training) {
  const auto heads = [&](int64_t length, int64_t count) {
    return at::randn({s.B, length, count, s.D}).transpose(1, 2).requires_grad_(training);
  };
  return {heads(s.L, s.H),
          heads(s.S, s.G),
          heads(s.S, s.G),
          at::randn({s.B, s.L, s.H, s.D}).transpose(1, 2),
          {}};
}

at::Tensor run_call(const AttendCall& in) {
  return finish_call(in, attend(in.query, in.key, in.value, in.options));
}

at::Tensor finish_call(const AttendCall& in, const at::Tensor& output) {
  if (!in.query.requires_grad()) return output;
  std::vector<at::Tensor> leaves = {in.query, in.key, in.value};
  if (in.learned.defined()) leaves.push_back(in.learned);
  return torch::autograd::grad({output}, leaves, {in.output_gradient}).front();
}

std::string call_name(const std::string& name, const CallShape& s, bool training) {
  return fmt::format("{}{}/{}x{}x{}x{}x{}", name, training ? "/training" : "", s.B, s.H, s.L, s.S,
                     s.D);
}

}  // namespace heed::bench
