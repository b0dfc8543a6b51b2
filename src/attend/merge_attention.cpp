// SPDX-License-Identifier: BSD-3-Clause
#include <heed/merge_attention.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "core/checks.h"
#include "core/dtypes.h"

namespace heed {

namespace {

constexpr auto kMerge = "merge_attention";
constexpr double kNone = -std::numeric_limits<double>::infinity();

void check_parts(at::TensorList outputs, at::TensorList lses) {
  HEED_CHECK(!outputs.empty(), "{}: outputs size (0) must be at least 1", kMerge);
  HEED_CHECK(lses.size() == outputs.size(), "{}: lses size ({}) must equal outputs size ({})",
             kMerge, lses.size(), outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto name = fmt::format("outputs[{}]", i), lse_name = fmt::format("lses[{}]", i);
    detail::check_defined(kMerge, name.c_str(), outputs[i]);
    detail::check_defined(kMerge, lse_name.c_str(), lses[i]);
    detail::check_rank(kMerge, name.c_str(), outputs[i], 4);
    detail::check_floating(kMerge, name.c_str(), outputs[i]);
    HEED_CHECK(outputs[i].sizes() == outputs[0].sizes(), "{}: {} {} must have the shape {}", kMerge,
               name, detail::shape(outputs[i]), detail::shape(outputs[0]));
    detail::check_same_dtype(kMerge, name.c_str(), outputs[i], "outputs[0]", outputs[0]);
    detail::check_same_device(kMerge, name.c_str(), outputs[i], "outputs[0]", outputs[0]);
    HEED_CHECK(lses[i].sizes() == outputs[0].sizes().slice(0, 3),
               "{}: {} {} must have the shape {}", kMerge, lse_name, detail::shape(lses[i]),
               c10::str(outputs[0].sizes().slice(0, 3)));
    const auto dtype = detail::compute_dtype(outputs[0].scalar_type());
    HEED_CHECK(lses[i].scalar_type() == dtype, "{}: {} dtype ({}) must be {}", kMerge, lse_name,
               c10::toString(lses[i].scalar_type()), c10::toString(dtype));
    detail::check_same_device(kMerge, lse_name.c_str(), lses[i], "outputs[0]", outputs[0]);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> merge_attention(at::TensorList outputs, at::TensorList lses) {
  check_parts(outputs, lses);
  const auto parts = at::stack(lses);  // [N, B, H, L]
  const auto largest = parts.detach().amax(0);
  const auto base = largest.masked_fill(largest.isinf(), 0.0);
  const auto weights = (parts - base).exp();
  const auto sum = weights.sum(0);
  const auto none = sum.detach().eq(0.0);
  const auto total = sum.masked_fill(none, 1.0);
  at::Tensor output;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto weight = (weights[static_cast<int64_t>(i)] / total).unsqueeze(-1);
    const auto part = outputs[i].to(weight.scalar_type()) * weight;
    output = output.defined() ? output + part : part;
  }
  return {output.to(outputs[0].scalar_type()), (total.log() + base).masked_fill(none, kNone)};
}

}  // namespace heed
