// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include "cpu/layers/swiglu.h"
#include "unit/routes.h"

namespace heed::test {

/// Kernels of the instruction sets that this processor has.
class Kernels : public ::testing::TestWithParam<Route> {
 protected:
  Kernels() : in_force_(GetParam()) {}

 private:
  ScopedRoute in_force_;
};

/// The definition of a SwiGLU with a form. Its gradient is 1 at a limit itself; that of at::clamp
/// is not in every version of LibTorch.
inline at::Tensor gated(const at::Tensor& gate, const at::Tensor& up,
                        const detail::SwiGluForm& form) {
  const auto g = at::where(gate > form.limit, form.limit, gate);
  const auto below = at::where(up > form.limit, form.limit, up);
  const auto u = at::where(up < -form.limit, -form.limit, below);
  return g * at::sigmoid(form.beta * g) * (u + form.offset);
}

}  // namespace heed::test
