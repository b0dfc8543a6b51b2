// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <heed/clip_grad_norm.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_clip_grad_norm {
namespace {

at::Tensor with_gradient(const at::Tensor& gradient) {
  auto parameter = at::zeros(gradient.sizes(), gradient.options().layout(at::kStrided));
  parameter.requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad().to_dense());
  return gradients;
}

TEST(ClipGradNorm, DoesAsTorchDoes) {
  for (const auto device : devices()) {
    for (const double max_norm : {0.3, 1.0, 1e3, std::numeric_limits<double>::infinity()}) {
      torch::manual_seed(moved(1));
      std::vector<at::Tensor> ours, theirs;
      for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 5}, {}, {0, 2}, {70}}) {
        const auto gradient = at::randn(shape, at::kDouble).to(device);
        ours.push_back(with_gradient(gradient.clone()));
        theirs.push_back(with_gradient(gradient.clone()));
      }
      ours.push_back(at::zeros({2}, device).requires_grad_());  // without a gradient
      const auto expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm);
      EXPECT_NEAR(clip_grad_norm_(ours, max_norm), expected, 1e-12 * expected);
      ours.pop_back();
      EXPECT_TRUE(are_close(gradients_of(ours), gradients_of(theirs), 1e-12)) << device;
    }
  }
}

/// float64, float32, bfloat16, half, other strides, sparse with a row that stands twice; and the
/// CPU beside the device.
TEST(ClipGradNorm, TakesGradientsOfAllKinds) {
  for (const auto device : devices()) {
    torch::manual_seed(moved(2));
    std::vector<at::Tensor> parameters;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      parameters.push_back(with_gradient(at::randn({4, 6}).to(device).to(dtype)));
    }
    parameters.push_back(with_gradient(at::randn({6, 4}).to(device).t()));
    parameters.push_back(with_gradient(at::randn({4, 6})));
    const auto rows = at::tensor({1, 3, 1}, at::kLong).unsqueeze(0);
    parameters.push_back(with_gradient(
        at::sparse_coo_tensor(rows, at::randn({3, 2}), {5, 2}, at::dtype(at::kFloat))));
    double squares = 0.0;
    auto expected = gradients_of(parameters);
    for (auto& gradient : expected) {
      gradient = gradient.to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
      squares += gradient.square().sum().item<double>();
    }
    const auto norm = std::sqrt(squares);
    EXPECT_NEAR(clip_grad_norm_(parameters, norm / 4), norm, 1e-6 * norm) << device;
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto gradient = parameters[i].grad().to_dense().to(at::kCPU, at::kDouble);
      const auto dtype = parameters[i].scalar_type();
      const auto largest = expected[i].abs().max().item<double>() / 4;
      EXPECT_TRUE(is_close(gradient, expected[i] / 4, largest * 1e-5 + unit_roundoff(dtype)))
          << i << " on " << device;
    }
  }
}

TEST(ClipGradNorm, CountsAParameterThatStandsTwiceOnce) {
  const auto first = with_gradient(at::full({4}, 2.0)), second = with_gradient(at::full({1}, 3.0));
  EXPECT_NEAR(clip_grad_norm_({first, second, first}, 2.5), 5.0, 1e-6);
  EXPECT_TRUE(is_close(first.grad(), at::full({4}, 1.0), 1e-6));
  EXPECT_TRUE(is_close(second.grad(), at::full({1}, 1.5), 1e-6));
}

/// Gradients in one piece of memory, in any order, and with gaps.
TEST(ClipGradNorm, IsExactForLargeParameters) {
  using View = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, View>> views = {
      {"contiguous", [](const at::Tensor& x) { return x; }},
      {"transposed", [](const at::Tensor& x) { return x.t(); }},
      {"permuted",
       [](const at::Tensor& x) {
         return x.view({4, 1000, 1000}).permute({2, 0, 1});
       }},
      {"with gaps", [](const at::Tensor& x) { return x.slice(1, 0, -1); }},
      {"every second", [](const at::Tensor& x) {
         return x.view({-1, 2}).select(1, 0);
       }}};
  torch::manual_seed(moved(3));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto numbers = at::randn({4, 1000000}).to(dtype);
    for (const auto& [name, view] : views) {
      const auto gradient = view(numbers);
      const auto expected = gradient.to(at::kDouble).norm().item<double>();
      // LibTorch's kernel alone would be wrong by 6e-5 to 1e-3; of 2^17 numbers of bfloat16 it is
      // by 3e-6.
      EXPECT_NEAR(clip_grad_norm_({with_gradient(gradient)}, 1e9), expected, 1e-5 * expected)
          << name << ", " << dtype;
    }
  }
}

TEST(ClipGradNorm, ReturnsZeroWithoutGradients) {
  EXPECT_EQ(clip_grad_norm_({}, 1.0), 0.0);
  EXPECT_EQ(clip_grad_norm_({at::zeros({2}).requires_grad_()}, 1.0), 0.0);
}

TEST(ClipGradNorm, DoesWithoutFiniteNumbersAsTorchDoes) {
  for (const auto number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto make = [&] {
      return std::vector<at::Tensor>{with_gradient(at::tensor({1.0, number}, at::kDouble)),
                                     with_gradient(at::ones({2}, at::kDouble))};
    };
    const auto refused = make(), ours = make(), theirs = make();
    EXPECT_EQ(value_error([&] { clip_grad_norm_(refused, 1.0, /*error_if_nonfinite=*/true); }),
              std::isnan(number) ? "clip_grad_norm_: norm (nan) of the gradients must be finite"
                                 : "clip_grad_norm_: norm (inf) of the gradients must be finite");
    EXPECT_EQ(refused[0].grad()[0].item<double>(), 1.0);
    EXPECT_FALSE(std::isfinite(clip_grad_norm_(ours, 1.0)));
    torch::nn::utils::clip_grad_norm_(theirs, 1.0);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 0, 0, /*equal_nan=*/true)) << i;
    }
  }
}

TEST(ClipGradNormErrors, NameWhatIsWrong) {
  const auto parameter = with_gradient(at::ones({2}));
  for (const auto& [max_norm, text] : std::vector<std::pair<double, std::string>>{
           {0.0, "0"}, {-1.0, "-1"}, {std::nan(""), "nan"}}) {
    EXPECT_EQ(value_error([&, most = max_norm] { clip_grad_norm_({parameter}, most); }),
              "clip_grad_norm_: max_norm (" + text + ") must be above 0");
  }
  EXPECT_ERROR("clip_grad_norm_: parameter 1 must be defined",
               clip_grad_norm_({parameter, at::Tensor()}, 0.5));
  EXPECT_TRUE(parameter.grad().eq(1.0).all().item<bool>());
}

/// A program may set any tensor as a gradient.
TEST(ClipGradNormErrors, NameWhatIsWrongWithGradients) {
  const auto parameter = with_gradient(at::ones({2}));
  const auto refusal = [&](const at::Tensor& gradient) {
    auto other = at::zeros({2}).requires_grad_();
    other.mutable_grad() = gradient;
    auto error = value_error([&] { clip_grad_norm_({parameter, other}, 0.5); });
    EXPECT_TRUE(parameter.grad().eq(1.0).all().item<bool>()) << error;
    return error;
  };
  const std::string floating = " of parameter 1 must be Float, Double, BFloat16 or Half";
  EXPECT_EQ(refusal(at::ones({2}, at::kLong)), "clip_grad_norm_: gradient dtype (Long)" + floating);
  EXPECT_EQ(refusal(at::ones({2}, at::kLong).to_sparse()),
            "clip_grad_norm_: gradient dtype (Long)" + floating);
  EXPECT_EQ(refusal(at::ones({2}, at::kComplexFloat)),
            "clip_grad_norm_: gradient dtype (ComplexFloat)" + floating);
  EXPECT_EQ(refusal(at::ones({2}).to(at::kFloat8_e5m2)),
            "clip_grad_norm_: gradient dtype (Float8_e5m2)" + floating);
  EXPECT_EQ(
      refusal(at::ones({2, 2}).to_sparse_csr()),
      "clip_grad_norm_: gradient layout (SparseCsr) of parameter 1 must be Strided or Sparse");
  EXPECT_EQ(refusal(at::_nested_tensor_from_tensor_list({at::ones({1}), at::ones({2})})),
            "clip_grad_norm_: gradient of parameter 1 must not be nested");
  EXPECT_EQ(refusal(at::ones({1}).expand({2})),
            "clip_grad_norm_: elements of the gradient of parameter 1 must not share memory");
}

}  // namespace
}  // namespace heed::test::of_clip_grad_norm
