// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <heed/fused_adamw.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <sstream>
#include <vector>

namespace heed::test::of_fused_adamw {

using torch::optim::AdamWOptions;

inline constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

inline at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype, at::Device device = at::kCPU) {
  return at::randn(shape, at::kDouble).to(device).to(dtype).requires_grad_();
}

/// Leaves with the same numbers.
/// @{
inline at::Tensor copied(const at::Tensor& parameter) {
  return parameter.detach().clone().requires_grad_();
}
inline std::vector<at::Tensor> copied(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : parameters) copies.push_back(copied(parameter));
  return copies;
}
/// @}

inline void give_gradient(at::Tensor parameter, const at::Tensor& gradient) {
  parameter.mutable_grad() = gradient.to(parameter.device()).to(parameter.scalar_type()).clone();
}

inline const FusedAdamWParamState& state_of(const FusedAdamW& optimizer,
                                            const at::Tensor& parameter) {
  return static_cast<const FusedAdamWParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

/// Writes a file of one optimizer, which the other one reads.
template <typename From, typename To>
void through_file(const From& from, To& to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
}

/// The parameters, or what they are rounded from.
inline at::Tensor exact(const FusedAdamW& optimizer, const at::Tensor& parameter) {
  const auto& master = state_of(optimizer, parameter).master();
  return (master.defined() ? master : parameter).detach();
}

}  // namespace heed::test::of_fused_adamw
