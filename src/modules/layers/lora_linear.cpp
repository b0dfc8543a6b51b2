// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/lora_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <ostream>

#include "core/dtypes.h"
#include "core/error.h"
#include "cpu/layers/packed_weight.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/linear.h"

namespace heed::detail {

double LoraSettings::scale(int64_t rank) const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

at::Tensor wide_weight(const at::Tensor& weight) {
  if (const auto* packed = packed_weight_of(weight)) return unpack_weight(*packed);
  return weight.to(compute_dtype(weight.scalar_type()));
}

at::Tensor row_lengths(const at::Tensor& weight) {
  return at::linalg_vector_norm(wide_weight(weight), 2, at::IntArrayRef(1));
}

LoraLinearImpl::LoraLinearImpl(const torch::nn::LinearImpl& base, const LoraParameters& parameters,
                               const LoraSettings& settings)
    : torch::nn::LinearImpl(base), settings(settings) {
  lora_a = register_parameter("lora_a", parameters.a);
  lora_b = register_parameter("lora_b", parameters.b);
  if (parameters.magnitude.defined()) {
    lora_magnitude = register_parameter("lora_magnitude", parameters.magnitude);
  }
}

/// W + scale B A.
at::Tensor LoraLinearImpl::adapted_weight() const {
  return wide_weight(weight) + scale() * at::matmul(lora_b, lora_a);
}

at::Tensor LoraLinearImpl::project(const at::Tensor& x) const {
  const auto input = drop_out(x, settings.dropout, is_training());
  const auto added =
      scale() * detail::linear(detail::linear(input.to(lora_a.scalar_type()), lora_a), lora_b);
  if (!lora_magnitude.defined()) {
    const auto output = detail::linear(x, weight, bias);
    return output + added.to(output.scalar_type());
  }
  // The lengths are constants in the backward pass, as in the paper.
  const auto lengths = [&] {
    const at::NoGradGuard no_grad;
    return row_lengths(adapted_weight());
  }();
  const auto factor = lora_magnitude / lengths;  // [N]
  const auto output = detail::linear(x, weight);
  // Where the adapter's input is dropped, so is that of the weight in the part that changes.
  const auto changed = input.is_same(x) ? output : detail::linear(input, weight);
  const auto sum = output + ((factor - 1) * changed + factor * added).to(output.scalar_type());
  return bias.defined() ? sum + bias.to(sum.scalar_type()) : sum;
}

at::Tensor LoraLinearImpl::merged_weight() const {
  const at::NoGradGuard no_grad;
  auto adapted = adapted_weight();
  if (lora_magnitude.defined()) {
    adapted = adapted * (lora_magnitude / row_lengths(adapted)).unsqueeze(1);
  }
  return adapted.to(weight.scalar_type());
}

void LoraLinearImpl::initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) {
  draw(*this);
}

void LoraLinearImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("heed::LoraLinear(in_features={}, out_features={}, bias={}, rank={})",
                        weight.size(1), weight.size(0), bias.defined(), lora_rank());
}

std::shared_ptr<torch::nn::Module> LoraLinearImpl::clone(
    const std::optional<at::Device>& /*device*/) const {
  HEED_CHECK(false,
             "clone: module must not have an adapter: merge_adapter, or clone it before and load "
             "the adapter again");
}

void check_no_adapter(const torch::nn::Module& module, const char* advice) {
  const auto check = [&](const torch::nn::Module& each) {
    HEED_CHECK(dynamic_cast<const LoraLinearImpl*>(&each) == nullptr,
               "module must not have an adapter{}", advice);
  };
  check(module);
  // A module on the stack cannot be one of its own modules.
  for (const auto& each : module.modules(/*include_self=*/false)) check(*each);
}

}  // namespace heed::detail
