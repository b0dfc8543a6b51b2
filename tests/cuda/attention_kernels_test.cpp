// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/attention_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "support/expect.h"

/// The simulated kernels of attention, against loops over all weights.

namespace heed::test::of_attention_kernels {
namespace {

const at::Device kDevice(at::kCUDA, 0);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 4e-3;  // of outputs below 4, rounded to half precision

using Sees = std::function<bool(int64_t i, int64_t j)>;
using Lengths = std::optional<c10::SymInt>;

struct Expected {
  at::Tensor output, lse;  // [L, H, D] and [H, L]; lse -inf without keys
};

/// query [L, H, D], key and value [S, G, D].
Expected by_loops(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const Sees& sees) {
  const auto q = query.cpu().to(at::kDouble).contiguous(),
             k = key.cpu().to(at::kDouble).contiguous(),
             v = value.cpu().to(at::kDouble).contiguous();
  const auto queries = q.size(0), heads = q.size(1), dim = q.size(2), keys = k.size(0);
  const auto a = q.accessor<double, 3>(), b = k.accessor<double, 3>(), c = v.accessor<double, 3>();
  Expected expected{at::zeros({queries, heads, v.size(2)}, at::kDouble),
                    at::zeros({heads, queries}, at::kDouble)};
  auto output = expected.output.accessor<double, 3>();
  auto lse = expected.lse.accessor<double, 2>();
  for (int64_t h = 0; h < heads; ++h) {
    const auto g = h / (heads / k.size(1));
    for (int64_t i = 0; i < queries; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        if (!sees(i, j)) continue;
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += a[i][h][d] * b[j][g][d];
        const auto weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
        sum += weight;
        for (int64_t d = 0; d < v.size(2); ++d) output[i][h][d] += weight * c[j][g][d];
      }
      lse[h][i] = sum == 0 ? -kInfinity : std::log(sum);
      for (int64_t d = 0; d < v.size(2); ++d) output[i][h][d] /= sum == 0 ? 1 : sum;
    }
  }
  return expected;
}

at::Tensor on_device(at::IntArrayRef sizes, at::ScalarType dtype = at::kHalf) {
  return at::randn(sizes).to(dtype).to(kDevice);
}

auto flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, Lengths left,
           Lengths right) {
  return at::_flash_attention_forward_symint(q, k, v, {}, {}, q.sym_size(1), k.sym_size(1), 0.0,
                                             causal, false, std::optional<double>(), left, right);
}

/// -inf where the kernel writes +inf.
at::Tensor lse_of(const at::Tensor& lse) {
  const auto host = lse.cpu().to(at::kDouble);
  return host.masked_fill(host.eq(kInfinity), -1e3);
}

void expect_flash(int64_t queries, int64_t keys, bool causal, Lengths left, Lengths right,
                  const Sees& sees) {
  const auto q = on_device({2, queries, 4, 16}), k = on_device({2, keys, 2, 16}),
             v = on_device({2, keys, 2, 16});
  const auto found = flash(q, k, v, causal, left, right);
  for (int64_t b = 0; b < 2; ++b) {
    const auto expected = by_loops(q[b], k[b], v[b], sees);
    EXPECT_TRUE(is_close(std::get<0>(found)[b].cpu(), expected.output, kTolerance));
    EXPECT_TRUE(is_close(lse_of(std::get<1>(found)[b]), expected.lse.clamp_min(-1e3), 1e-3));
  }
}

TEST(SimulatedFlash, SeesAllKeys) {
  expect_flash(5, 9, false, {}, {}, [](auto, auto) { return true; });
}

TEST(SimulatedFlash, IsCausalFromTheEnd) {
  expect_flash(5, 9, true, {}, {}, [](auto i, auto j) { return j <= i + 4; });
  expect_flash(9, 5, true, {}, {}, [](auto i, auto j) { return j <= i - 4; });  // rows without keys
}

TEST(SimulatedFlash, HasWindowsWithBothEnds) {
  expect_flash(9, 9, false, 2, 1, [](auto i, auto j) { return i - 2 <= j && j <= i + 1; });
  expect_flash(5, 9, true, 2, 7, [](auto i, auto j) { return i + 2 <= j && j <= i + 4; });
}

TEST(SimulatedFlash, ClosesWindowsAfterAsManyKeysAsThereAre) {
  expect_flash(12, 5, false, 1, {}, [](auto i, auto j) { return i - 8 <= j && j <= i - 2; });
  expect_flash(12, 5, false, 1, 6, [](auto i, auto j) { return i - 8 <= j && j <= i - 2; });
  expect_flash(12, 5, false, {}, 6, [](auto, auto) { return true; });
}

TEST(SimulatedFlash, AttendsToPackedSequences) {
  const auto q = on_device({7, 2, 8}), k = on_device({12, 2, 8}), v = on_device({12, 2, 8});
  const auto offsets = [](std::vector<int64_t> numbers) {
    return at::tensor(numbers).to(at::kInt).to(kDevice);
  };
  const auto found = at::_flash_attention_forward_symint(
      q, k, v, offsets({0, 3, 7}), offsets({0, 6, 12}), 4, 6, 0.0, true, false,
      std::optional<double>(), {}, {}, offsets({4, 5}));
  const int64_t begins[] = {0, 3, 7}, lengths[] = {4, 5};
  for (int64_t s = 0; s < 2; ++s) {
    const auto first = begins[s], count = begins[s + 1] - begins[s], keys = lengths[s];
    const auto expected =
        by_loops(q.narrow(0, first, count), k.narrow(0, 6 * s, keys), v.narrow(0, 6 * s, keys),
                 [&](auto i, auto j) { return j <= i + keys - count; });
    EXPECT_TRUE(
        is_close(std::get<0>(found).narrow(0, first, count).cpu(), expected.output, kTolerance));
    EXPECT_TRUE(is_close(std::get<1>(found).narrow(1, first, count).cpu(), expected.lse, 1e-3));
  }
}

/// The gradients of the kernel against those of the formula in float64.
TEST(SimulatedFlash, Differentiates) {
  const auto leaf = [](at::IntArrayRef sizes) { return on_device(sizes).requires_grad_(); };
  const auto q = leaf({1, 6, 4, 8}), k = leaf({1, 6, 2, 8}), v = leaf({1, 6, 2, 8});
  const auto gradient = on_device({1, 6, 4, 8});
  const auto found =
      torch::autograd::grad({std::get<0>(flash(q, k, v, true, 2, {}))}, {q, k, v}, {gradient});
  const auto exact = [](const at::Tensor& x) {
    return x.detach().cpu().to(at::kDouble).requires_grad_();
  };
  const auto a = exact(q), b = exact(k), c = exact(v);
  const auto turned = [](const at::Tensor& x) {
    return x.transpose(1, 2).repeat_interleave(4 / x.size(2), 1);
  };
  const auto ones = at::ones({6, 6}, at::kBool);
  const auto output =
      at::scaled_dot_product_attention(turned(a), turned(b), turned(c), ones.tril() & ones.triu(-2))
          .transpose(1, 2);
  const auto expected =
      torch::autograd::grad({output}, {a, b, c}, {gradient.cpu().to(at::kDouble)});
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_close(found[i].cpu(), expected[i], 1e-2));
}

TEST(SimulatedFlash, RefusesWhatTheRealOneRefuses) {
  const auto refusal_of = [](const at::Tensor& x) {
    return error_text<c10::Error>([&] { flash(x, x, x, false, {}, {}); });
  };
  EXPECT_EQ(refusal_of(on_device({1, 4, 2, 8}, at::kFloat)),
            "FlashAttention only support fp16 and bf16 data type");
  EXPECT_EQ(refusal_of(on_device({1, 4, 2, 12})),
            "head_size must be a multiple of 8, this is ensured by padding!");
  EXPECT_EQ(refusal_of(on_device({1, 4, 2, 264})),
            "FlashAttention forward only supports head dimension at most 256");
  EXPECT_THAT(refusal_of(on_device({1, 4, 2, 17}).narrow(3, 1, 16)),
              testing::HasSubstr("misaligned address"));
}

auto efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t mask_type,
               std::optional<int64_t> window, const std::optional<at::Tensor>& bias = {}) {
  return at::_efficient_attention_forward_symint(q, k, v, bias, {}, {}, {}, {}, 0.0, mask_type,
                                                 true, {}, {}, window);
}

void expect_efficient(int64_t queries, int64_t keys, int64_t mask_type,
                      std::optional<int64_t> window, const Sees& sees) {
  const auto q = on_device({2, queries, 3, 8}, at::kFloat),
             k = on_device({2, keys, 3, 8}, at::kFloat),
             v = on_device({2, keys, 3, 12}, at::kFloat);
  const auto found = efficient(q, k, v, mask_type, window);
  const auto lse = std::get<1>(found).cpu();
  EXPECT_EQ(lse.sizes(), at::IntArrayRef({2, 3, 32}));
  EXPECT_TRUE(lse.narrow(2, queries, 32 - queries).eq(kInfinity).all().item<bool>());
  for (int64_t b = 0; b < 2; ++b) {
    const auto expected = by_loops(q[b], k[b], v[b], sees);
    EXPECT_TRUE(is_close(std::get<0>(found)[b].cpu(), expected.output, 1e-5));
    EXPECT_TRUE(is_close(lse[b].narrow(1, 0, queries),
                         expected.lse.masked_fill(expected.lse.isinf(), 0.0), 1e-5));
  }
}

TEST(SimulatedEfficient, HasThreeMasks) {
  expect_efficient(5, 9, 0, {}, [](auto, auto) { return true; });
  expect_efficient(5, 9, 1, {}, [](auto i, auto j) { return j <= i; });
  expect_efficient(5, 9, 2, {}, [](auto i, auto j) { return j <= i + 4; });
}

TEST(SimulatedEfficient, CountsTheDiagonalInAWindow) {
  expect_efficient(9, 9, 1, 3, [](auto i, auto j) { return i - 3 < j && j <= i; });
  expect_efficient(5, 9, 2, 3, [](auto i, auto j) { return i + 1 < j && j <= i + 4; });
}

TEST(SimulatedEfficient, RefusesWhatTheRealOneRefuses) {
  const auto x = on_device({1, 8, 2, 8}, at::kFloat);
  EXPECT_EQ(
      error_text<c10::Error>([&] { efficient(x, x.narrow(2, 0, 1), x.narrow(2, 0, 1), 0, {}); }),
      "Expected query.size(2) == key.size(2)");
  EXPECT_EQ(error_text<c10::Error>([&] { efficient(x, x, x, 0, 2); }),
            "custom_mask_type not supported");
  EXPECT_EQ(error_text<c10::Error>([&] {
              efficient(x, x, x, 0, {}, on_device({1, 2, 8, 8}));
            }),
            "invalid dtype for bias - should match query's dtype");
  EXPECT_EQ(error_text<c10::Error>([&] {
              efficient(x, x, x, 0, {}, on_device({1, 1, 8, 8}, at::kFloat));
            }),
            "bias must be [B, H, L, S]");
  EXPECT_EQ(
      error_text<c10::Error>([&] { efficient(x, x.narrow(1, 0, 5), x.narrow(1, 0, 5), 2, {}); }),
      "simulated CUDA: custom_mask_type 2 is wrong where L > S");
}

TEST(SimulatedKernels, CanBeBroken) {
  const auto x = on_device({1, 6, 2, 8});
  const auto whole = std::get<0>(flash(x, x, x, true, 2, {})).cpu();
  constexpr auto kName = "aten::_flash_attention_forward";
  {
    const BrokenKernel broken(kName, KernelFault::window);
    EXPECT_FALSE(std::get<0>(flash(x, x, x, true, 2, {})).cpu().equal(whole));
  }
  {
    const BrokenKernel broken(kName, KernelFault::throws);
    EXPECT_THROW(flash(x, x, x, true, 2, {}), c10::Error);
  }
  EXPECT_TRUE(std::get<0>(flash(x, x, x, true, 2, {})).cpu().equal(whole));
}

}  // namespace
}  // namespace heed::test::of_attention_kernels
