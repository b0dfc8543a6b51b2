// SPDX-License-Identifier: BSD-3-Clause
#include "unit/reference_cases.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "support/dense.h"
#include "support/expect.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

bool takes(const Route& route, const ReferenceCase& c) {
  return c.fused || route.path != AttendPath::fused;
}

/// The tensors whose gradients are asked for, and the reference's.
struct Leaves {
  std::vector<at::Tensor> tensors, gradients;

  void add(const std::optional<at::Tensor>& tensor, const at::Tensor& gradient) {
    if (!tensor || !tensor->requires_grad()) return;
    tensors.push_back(*tensor);
    gradients.push_back(gradient);
  }
};

/// A sum of exp that is off by so many roundoffs moves its log by as many.
void expect_lse(const at::Tensor& actual, const at::Tensor& expected, at::ScalarType dtype,
                double largest_score, const std::string& name) {
  ASSERT_EQ(actual.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat) << name;
  const auto none = expected.isinf();
  ASSERT_TRUE(actual.isinf().cpu().equal(none)) << name;
  ASSERT_TRUE(is_close(actual.masked_fill(none.to(actual.device()), 0.0),
                       expected.masked_fill(none, 0.0),
                       4 * forward_tolerance(dtype, largest_score)))
      << "lse, " << name;
}

}  // namespace

double forward_tolerance(at::ScalarType dtype, double largest_score) {
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  return (half ? 4 : 32 + largest_score) * unit_roundoff(dtype);
}

void expect_outputs_of_reference(const std::vector<ReferenceCase>& cases,
                                 const at::TensorOptions& options, double largest_score) {
  const at::NoGradGuard no_grad;
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const auto tolerance = forward_tolerance(dtype, largest_score);
  for (const auto& c : cases) {
    const auto inputs = make_inputs(c.sizes, options);
    const auto expected = dense_reference(inputs, c.options);
    for (const auto& route : routes()) {
      const ScopedRoute in_force(route);
      if (takes(route, c)) {
        const auto output = attend(inputs, c.options);
        ASSERT_EQ(output.scalar_type(), dtype);
        ASSERT_TRUE(is_close(output, expected.output, tolerance)) << c.name << ", " << route.name;
      }
      const auto [beside_lse, lse] = attend_with_lse(inputs, c.options);
      ASSERT_TRUE(is_close(beside_lse, expected.output, tolerance))
          << "with lse, " << c.name << ", " << route.name;
      expect_lse(lse, expected.lse, dtype, largest_score, c.name + ", " + route.name);
      const auto [same, weights] = attend_with_weights(inputs, c.options);
      ASSERT_EQ(weights.scalar_type(), dtype);
      ASSERT_TRUE(is_close(same, expected.output, tolerance))
          << "with weights, " << c.name << ", " << route.name;
      ASSERT_TRUE(is_close(weights, expected.weights, tolerance))
          << "weights, " << c.name << ", " << route.name;
    }
  }
}

void expect_gradients_of_reference(const std::vector<ReferenceCase>& cases,
                                   const at::TensorOptions& options, double largest_score) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  for (const auto& c : cases) {
    const auto inputs = make_inputs(c.sizes, options);
    const auto& s = c.sizes;
    const auto output_gradient = uniform({s.B, s.H, s.L, s.Dv}, options);
    const auto expected = dense_reference(inputs, c.options, {output_gradient});
    const auto leaves_of = [&](const ReferenceResult& of) {
      Leaves leaves;
      leaves.add(inputs.query.requires_grad_(), of.query_grad);
      leaves.add(inputs.key.requires_grad_(), of.key_grad);
      leaves.add(inputs.value.requires_grad_(), of.value_grad);
      leaves.add(c.options.bias(), of.bias_grad);
      leaves.add(c.options.sinks(), of.sinks_grad);
      leaves.add(c.options.relative_bias(), of.relative_bias_grad);
      leaves.add(c.options.alibi_slopes(), of.alibi_slopes_grad);
      return leaves;
    };
    const auto leaves = leaves_of(expected);
    const auto computed_in = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto lse_gradient = uniform({s.B, s.H, s.L}, options.dtype(computed_in));
    const auto with_lse =
        leaves_of(dense_reference(inputs, c.options, {output_gradient, lse_gradient}));
    const auto check = [&](const std::vector<at::Tensor>& results, const std::string& route,
                           const Leaves& leaves) {
      ASSERT_TRUE(is_close(results[0], expected.output, forward_tolerance(dtype, largest_score)))
          << c.name << ", " << route;
      std::vector<at::Tensor> gradients = {output_gradient};
      if (results.size() > 1) gradients.push_back(lse_gradient);
      const auto actual = torch::autograd::grad(results, leaves.tensors, gradients);
      for (size_t i = 0; i < actual.size(); ++i) {
        // Sums of up to H / G * L = 132 products of two rounded factors of size about 1. Biases,
        // slopes and sinks have a dtype of their own, to which their gradients are rounded.
        const auto tolerance =
            16 * std::max(forward_tolerance(dtype, largest_score),
                          forward_tolerance(leaves.tensors[i].scalar_type(), largest_score));
        ASSERT_TRUE(is_close(actual[i], leaves.gradients[i], tolerance))
            << c.name << ", " << route << ", input " << i;
      }
    };
    for (const auto& route : routes()) {
      if (!takes(route, c)) continue;
      const ScopedRoute in_force(route);
      ASSERT_NO_FATAL_FAILURE(check({attend(inputs, c.options)}, route.name, leaves));
      const auto [output, lse] = attend_with_lse(inputs, c.options);
      ASSERT_NO_FATAL_FAILURE(check({output, lse}, "lse, " + route.name, with_lse));
    }
    ASSERT_NO_FATAL_FAILURE(
        check({std::get<0>(attend_with_weights(inputs, c.options))}, "with weights", leaves));
  }
}

}  // namespace heed::test
