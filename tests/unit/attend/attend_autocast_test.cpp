// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/autocast.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::of_attend_autocast {
namespace {

using torch::autograd::grad;

constexpr at::ScalarType kLow[] = {at::kBFloat16, at::kHalf};
constexpr at::ScalarType kCast[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// Leaves: query, key, value and bias.
struct Leaves : Inputs {
  at::Tensor bias;

  std::vector<at::Tensor> all() const { return {query, key, value, bias}; }
  AttendOptions options() const { return AttendOptions().bias(bias); }
  Leaves to(at::ScalarType dtype) const {
    const auto convert = [&](const at::Tensor& leaf) {
      return leaf.detach().to(dtype).requires_grad_();
    };
    return {{convert(query), convert(key), convert(value)}, convert(bias)};
  }
};

Leaves make_leaves(at::Device device, at::ScalarType query_dtype, at::ScalarType dtype) {
  const Sizes s;
  const auto leaf = [&](at::IntArrayRef shape, at::ScalarType of) {
    return uniform(shape, at::device(device).dtype(of)).requires_grad_();
  };
  return {{leaf({s.B, s.H, s.L, s.D}, query_dtype), leaf({s.B, s.G, s.S, s.D}, dtype),
           leaf({s.B, s.G, s.S, s.Dv}, dtype)},
          leaf({s.L, s.S}, dtype)};
}

at::Tensor attend_to(const Leaves& leaves) { return attend(leaves, leaves.options()); }

at::Tensor sdpa_of(const Leaves& leaves) {
  return at::scaled_dot_product_attention(leaves.query, leaves.key, leaves.value, leaves.bias);
}

std::vector<at::Tensor> gradients(const at::Tensor& output, const Leaves& leaves) {
  return grad({output}, leaves.all(), {at::ones_like(output)});
}

template <typename Call>
auto under(const Autocast& /*autocast*/, const Call& call) {
  return call();
}

TEST(AttendUnderAutocast, ConvertsWhatSdpaConverts) {
  torch::manual_seed(moved(1));
  for (const auto device : devices()) {
    for (const auto dtype : kLow) {
      // Outputs and weights of size 1 are rounded once or twice on each side, and a gradient is a
      // sum of five products of such numbers.
      const auto tolerance = 8 * unit_roundoff(dtype);
      for (const auto query_dtype : kCast) {
        for (const auto key_dtype : kCast) {
          const auto leaves = make_leaves(device, query_dtype, key_dtype);
          const auto name = std::string(c10::toString(query_dtype)) + ", " +
                            c10::toString(key_dtype) + " to " + c10::toString(dtype) + " on " +
                            device.str();
          const auto [output, expected] = under(Autocast(device.type(), dtype), [&] {
            return std::make_pair(attend_to(leaves), sdpa_of(leaves));
          });
          EXPECT_EQ(output.scalar_type(), dtype) << name;
          EXPECT_EQ(output.scalar_type(), expected.scalar_type()) << name;
          EXPECT_TRUE(is_close(output, expected, tolerance)) << name;
          const auto found = gradients(output, leaves), theirs = gradients(expected, leaves);
          for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_EQ(found[i].scalar_type(), leaves.all()[i].scalar_type()) << name << ", " << i;
            EXPECT_EQ(found[i].scalar_type(), theirs[i].scalar_type()) << name << ", " << i;
            EXPECT_TRUE(is_close(found[i], theirs[i], tolerance)) << name << ", gradient " << i;
          }
        }
      }
    }
  }
}

/// The same, bit for bit, as if the tensors had been converted before: nothing else is rounded.
TEST(AttendUnderAutocast, IsTheCallOfConvertedTensorsOnEveryPath) {
  torch::manual_seed(moved(2));
  for (const auto device : devices()) {
    for (const auto& route : routes()) {
      const ScopedRoute scoped(route);
      for (const auto dtype : kLow) {
        const auto leaves = make_leaves(device, at::kFloat, at::kFloat);
        const auto converted = leaves.to(dtype);
        const auto output =
            under(Autocast(device.type(), dtype), [&] { return attend_to(leaves); });
        const auto expected = attend_to(converted);
        EXPECT_TRUE(output.equal(expected)) << route.name << " on " << device;
        const auto found = gradients(output, leaves), theirs = gradients(expected, converted);
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i].equal(theirs[i].to(at::kFloat)))
              << route.name << " on " << device << ", gradient " << i;
        }
      }
    }
  }
}

TEST(AttendUnderAutocast, LeavesFloat64) {
  torch::manual_seed(moved(3));
  for (const auto device : devices()) {
    auto leaves = make_leaves(device, at::kDouble, at::kDouble);
    leaves.bias = leaves.bias.detach().to(at::kFloat);  // which SDPA would round, and then refuse
    const auto output =
        under(Autocast(device.type(), at::kBFloat16), [&] { return attend_to(leaves); });
    EXPECT_EQ(output.scalar_type(), at::kDouble);
    EXPECT_TRUE(output.equal(attend_to(leaves))) << device;
  }
}

TEST(AttendUnderAutocast, LeavesAllWhereItIsOff) {
  torch::manual_seed(moved(4));
  const auto leaves = make_leaves(at::kCPU, at::kFloat, at::kFloat);
  const auto expected = attend_to(leaves);
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const Autocast off(at::kCPU, at::kFloat);
    EXPECT_TRUE(attend_to(leaves).equal(expected));
    EXPECT_EQ(sdpa_of(leaves).scalar_type(), at::kFloat);
  }
  const Autocast of_another_device(at::kCUDA, at::kHalf);
  EXPECT_TRUE(attend_to(leaves).equal(expected));
}

TEST(AttendUnderAutocast, ConvertsForEveryFunction) {
  torch::manual_seed(moved(5));
  const auto dtype = at::kHalf;
  for (const auto device : devices()) {
    const auto leaves = make_leaves(device, at::kFloat, at::kFloat);
    const auto low = leaves.to(dtype);
    const auto options = leaves.options(), low_options = low.options();
    const auto [output, weights] = attend_with_weights(low, low_options);
    const auto [same, lse] = attend_with_lse(low, low_options);
    const auto path = attend_path(low, low_options);
    const Autocast autocast(device.type(), dtype);
    const auto found = attend_with_weights(leaves, options);
    EXPECT_TRUE(std::get<0>(found).equal(output)) << device;
    EXPECT_TRUE(std::get<1>(found).equal(weights)) << device;
    const auto with_lse = attend_with_lse(leaves, options);
    EXPECT_TRUE(std::get<0>(with_lse).equal(same)) << device;
    EXPECT_TRUE(std::get<1>(with_lse).equal(lse)) << device;
    EXPECT_EQ(std::get<1>(with_lse).scalar_type(), at::kFloat);
    EXPECT_EQ(attend_path(leaves.query, low.key, leaves.value, options), path) << device;
  }
}

TEST(AttendUnderAutocast, ConvertsPackedSequences) {
  torch::manual_seed(moved(6));
  const auto offsets = at::tensor({0, 3, 8}, at::kLong);
  for (const auto device : devices()) {
    const auto x = uniform({8, 4, 16}, device).requires_grad_();
    const auto low = x.detach().to(at::kHalf).requires_grad_();
    const auto on_device = offsets.to(device);
    const auto expected = attend_varlen(low, low, low, offsets, offsets);
    const auto gradient = grad({expected.sum()}, {low})[0];
    const auto outputs = under(Autocast(device.type(), at::kHalf), [&] {
      return std::vector<at::Tensor>{attend_varlen(x, x, x, offsets, offsets),
                                     attend_varlen(x, x, x, on_device, on_device, 5, 5)};
    });
    {
      const Autocast autocast(device.type(), at::kHalf);
      EXPECT_TRUE(attend_varlen(x, low, x, offsets, offsets).equal(expected)) << device;
      EXPECT_TRUE(attend_varlen(x, low, x, on_device, on_device, 5, 5).equal(expected)) << device;
    }
    for (const auto& output : outputs) {
      EXPECT_TRUE(output.equal(expected)) << device;
      // Three gradients of float16 are added: in float32 here, rounded there.
      EXPECT_TRUE(is_close(grad({output.sum()}, {x})[0], gradient, 4 * unit_roundoff(at::kHalf)))
          << device;
    }
  }
}

/// As SDPA: of a leaf, until autocast ends, however it is changed in between.
TEST(AttendUnderAutocast, KeepsConvertedLeaves) {
  torch::manual_seed(moved(7));
  const auto changed = [](const auto& function) {
    auto leaves = make_leaves(at::kCPU, at::kFloat, at::kFloat);
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const auto before = function(leaves);
    {
      const at::NoGradGuard no_grad;
      leaves.value.add_(1.0);
    }
    return !function(leaves).equal(before);
  };
  EXPECT_EQ(changed(attend_to), changed(sdpa_of));
}

TEST(AttendUnderAutocast, RefusesWhatDoesNotFit) {
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto x = uniform({1, 1, 2, 4}, at::kFloat);
  EXPECT_ERROR("attend: query must be defined", attend({}, x, x));
  EXPECT_ERROR("attend: key must be defined", attend(x, {}, x));
  EXPECT_ERROR("attend: key dtype (Double) must equal query dtype (BFloat16)",
               attend(x, x.to(at::kDouble), x));
  EXPECT_ERROR("attend: key dtype (Float) must equal query dtype (Double)",
               attend(x.to(at::kDouble), x, x));
  EXPECT_ERROR(
      "attend: mask dtype (Float) must be Bool or an integer; it holds other numbers than a mask: "
      "pass it as bias if it is added to the scores",
      attend(x, x, x, AttendOptions().mask(x[0][0])));
}

}  // namespace
}  // namespace heed::test::of_attend_autocast
