// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

using torch::autograd::grad;

/// One random choice of mask or bias for the sizes at hand.
struct Scores {
  const char* name;
  std::function<std::optional<at::Tensor>(const Sizes&)> make;
};

/// Every shape and dtype that a mask may have; `random_mask` leaves some queries no key.
const std::vector<Scores> kMasks = {
    {"no mask", [](const Sizes&) { return std::optional<at::Tensor>(); }},
    {"mask [L, S] bool",
     [](const Sizes& s) {
       return random_mask({s.L, s.S});
     }},
    {"mask [B, L, S] int64",
     [](const Sizes& s) {
       return random_mask({s.B, s.L, s.S}).to(at::kLong) * 3;
     }},
    {"mask [1, L, S] uint8",
     [](const Sizes& s) {
       return random_mask({1, s.L, s.S}).to(at::kByte);
     }},
    {"mask [B, 1, S] padding",
     [](const Sizes& s) {
       return padding_mask(at::tensor({int64_t{1}, s.S}), s.S).squeeze(1);
     }},
    {"mask [B, 1, 1, S] padding",
     [](const Sizes& s) {
       return padding_mask(at::tensor({int64_t{1}, s.S}), s.S);
     }},
    {"mask [B, H, L, S] expanded",
     [](const Sizes& s) {
       return random_mask({s.B, 1, s.L, s.S}).expand({s.B, s.H, s.L, s.S});
     }},
    {"mask [B, H, L, S] all hidden for batch 0",
     [](const Sizes& s) {
       auto mask = random_mask({s.B, s.H, s.L, s.S});
       mask[0].fill_(false);
       return mask;
     }},
};

const std::vector<Scores> kBiases = {
    {"no bias", [](const Sizes&) { return std::optional<at::Tensor>(); }},
    {"bias [L, S]",
     [](const Sizes& s) {
       return uniform({s.L, s.S}, at::kFloat);
     }},
    {"bias [1, H, 1, S] with gradient",
     [](const Sizes& s) {
       return uniform({1, s.H, 1, s.S}, at::kFloat).requires_grad_();
     }},
    {"bias [1, 1, S]",
     [](const Sizes& s) {
       return uniform({1, 1, s.S}, at::kFloat);
     }},
    {"bias [B, 1, L, S] float64",
     [](const Sizes& s) {
       return uniform({s.B, 1, s.L, s.S}, at::kDouble);
     }},
};

/// {MHA, GQA, MQA} x (L, S) x mask x bias x causal x window. Head dims take turns.
std::vector<ReferenceCase> all_cases(at::Device device) {
  std::vector<ReferenceCase> cases;
  const std::vector<std::pair<int64_t, int64_t>> lengths = {{1, 1}, {1, 7}, {6, 1},   {5, 5},
                                                            {4, 9}, {9, 4}, {33, 33}, {3, 65}};
  for (const int64_t groups : {4, 2, 1}) {
    for (const auto& [L, S] : lengths) {
      for (const auto& mask : kMasks) {
        for (const auto& bias : kBiases) {
          for (const bool causal : {false, true}) {
            for (const int64_t window : {0, 3}) {
              Sizes sizes{2, 4, groups, L, S, 8, 8};
              if (cases.size() % 4 == 1) sizes.D = 13;
              sizes.Dv = cases.size() % 3 == 0 ? 5 : cases.size() % 7 == 0 ? 11 : sizes.D;
              AttendOptions options;
              if (const auto tensor = mask.make(sizes)) options.mask(tensor->to(device));
              if (const auto tensor = bias.make(sizes)) {
                options.bias(tensor->detach().to(device).requires_grad_(tensor->requires_grad()));
              }
              options.causal(causal);
              if (window > 0) options.window(window);
              if (cases.size() % 5 == 0) options.scale(0.7);
              if (cases.size() % 3 == 1) {
                options.documents(at::randint(0, 3, {sizes.B, L}, at::kLong).to(device));
                options.key_documents(at::randint(0, 3, {S}, at::kInt).to(device));
              }
              cases.push_back({sizes, options,
                               "G " + std::to_string(groups) + ", L " + std::to_string(L) + ", S " +
                                   std::to_string(S) + ", D " + std::to_string(sizes.D) + ", Dv " +
                                   std::to_string(sizes.Dv) + ", " + mask.name + ", " + bias.name +
                                   (causal ? ", causal" : "") + (window > 0 ? ", window 3" : "")});
            }
          }
        }
      }
    }
  }
  return cases;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// All cases; under the sanitizers and on other devices, a fourth of them, for they take several
/// times as long there. The dtypes then have different cases, and every case has a dtype.
std::vector<ReferenceCase> cases_of(at::ScalarType dtype, at::Device device) {
  auto cases = all_cases(device);
  if (!kSanitized && device.is_cpu()) return cases;
  constexpr std::array<at::ScalarType, 4> kAll = {at::kFloat, at::kDouble, at::kBFloat16,
                                                  at::kHalf};
  std::vector<ReferenceCase> some;
  for (size_t i = 0; i < cases.size(); ++i) {
    // Neighbors, and those in one place among four neighbors, are of different dtypes.
    if (kAll[(i + i / kAll.size()) % kAll.size()] == dtype) some.push_back(std::move(cases[i]));
  }
  return some;
}

class AttendEverywhere : public ::testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, AttendEverywhere, kDtypes, kNamed);

TEST_P(AttendEverywhere, InferenceEqualsTheReference) {
  torch::manual_seed(moved(1));
  for (const auto device : devices()) {
    expect_outputs_of_reference(cases_of(GetParam(), device), at::device(device).dtype(GetParam()));
  }
}

TEST_P(AttendEverywhere, GradientsEqualTheReference) {
  torch::manual_seed(moved(2));
  for (const auto device : devices()) {
    expect_gradients_of_reference(cases_of(GetParam(), device),
                                  at::device(device).dtype(GetParam()));
  }
}

TEST_P(AttendEverywhere, TakesScalesBelowZeroAndTiny) {
  torch::manual_seed(moved(5));
  const auto options = AttendOptions().causal(true);
  const auto negative = AttendOptions(options).scale(-0.5);
  expect_outputs_of_reference({{{}, negative, "causal"}}, GetParam());
  expect_gradients_of_reference({{{}, negative, "causal"}}, GetParam());
  expect_outputs_of_reference({{{}, AttendOptions(options).scale(1e-40), "causal"}}, GetParam());
}

/// Central differences of a random projection of the output, each element of each input.
TEST(Attend, LetsQueriesSeeTheirOwnDocument) {
  torch::manual_seed(moved(5));
  const Sizes s{2, 4, 4, 6, 40, 8, 8};
  const auto inputs = make_inputs(s, at::kFloat);
  const auto documents = at::tensor({0, 0, 3, 1, 7, 1}, at::kLong);  // 7 has no key
  const auto key_documents = at::randint(0, 4, {s.B, s.S}, at::kInt);
  const auto same = documents.view({1, s.L, 1}).eq(key_documents.unsqueeze(1));
  const auto mask = random_mask({s.L, s.S});
  for (const auto& route : routes()) {
    const ScopedRoute in_force(route);
    const auto found = attend(
        inputs,
        AttendOptions().documents(documents).key_documents(key_documents).mask(mask).causal(true));
    const auto expected = attend(inputs, AttendOptions().mask(mask.logical_and(same)).causal(true));
    EXPECT_TRUE(found.equal(expected)) << route.name;
  }
  const auto ids = at::tensor({1, 1, 2, 2, 2}, at::kLong);
  const auto square = make_inputs(Sizes(), at::kFloat);
  EXPECT_TRUE(attend(square, AttendOptions().documents(ids))
                  .equal(attend(square, AttendOptions().mask(document_mask(ids)))));
}

TEST(Attend, GradientsEqualFiniteDifferences) {
  torch::manual_seed(moved(3));
  const Sizes sizes{2, 4, 2, 3, 4, 3, 2};
  const auto bias = uniform({1, sizes.H, 1, sizes.S}, at::kDouble).requires_grad_();
  const std::vector<AttendOptions> variants = {
      AttendOptions(), AttendOptions().causal(true),
      AttendOptions().mask(random_mask({sizes.L, sizes.S})).scale(0.3), AttendOptions().bias(bias),
      AttendOptions().bias(bias).causal(true).window(2)};
  for (const auto& options : variants) {
    for (const auto& route : routes()) {
      const ScopedRoute in_force(route);
      const auto strided = make_inputs(sizes, at::kDouble);
      const auto query = strided.query.contiguous().requires_grad_();
      const auto key = strided.key.contiguous().requires_grad_();
      const auto value = strided.value.contiguous().requires_grad_();
      std::vector<at::Tensor> leaves = {query, key, value};
      if (options.bias()) leaves.push_back(*options.bias());
      const auto projection = uniform({sizes.B, sizes.H, sizes.L, sizes.Dv}, at::kDouble);
      const auto loss = [&] { return (attend(query, key, value, options) * projection).sum(); };
      const auto gradients = grad({loss()}, leaves);

      const at::NoGradGuard no_grad;
      constexpr double kStep =
          1e-5;  // truncation ~ step^2 = 1e-10, rounding ~ 1e-16 / step = 1e-11
      for (size_t i = 0; i < leaves.size(); ++i) {
        const auto gradient = gradients[i].contiguous();
        for (int64_t n = 0; n < leaves[i].numel(); ++n) {
          auto& element = leaves[i].data_ptr<double>()[n];
          const auto original = element;
          element = original + kStep;
          const auto above = loss().item<double>();
          element = original - kStep;
          const auto below = loss().item<double>();
          element = original;
          ASSERT_NEAR(gradient.data_ptr<double>()[n], (above - below) / (2 * kStep), 1e-8)
              << "input " << i << " at " << n << ", " << route.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed::test
