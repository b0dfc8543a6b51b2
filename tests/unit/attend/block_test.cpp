// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/seeds.h"
#include "support/threads.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

using detail::ScopedPath;
using torch::autograd::grad;

Inputs with_grad(const Inputs& inputs) {
  return {inputs.query.detach().clone().requires_grad_(),
          inputs.key.detach().clone().requires_grad_(),
          inputs.value.detach().clone().requires_grad_()};
}

struct Computed {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

Computed compute(AttendPath path, const Inputs& inputs, AttendOptions options,
                 const at::Tensor& output_gradient) {
  const ScopedPath scope(path);
  const auto leaves = with_grad(inputs);
  std::vector<at::Tensor> wanted = {leaves.query, leaves.key, leaves.value};
  if (options.bias()) {
    options.bias(options.bias()->detach().clone().requires_grad_());
    wanted.push_back(*options.bias());
  }
  const auto output = attend(leaves, options);
  return {output.detach(), grad({output}, wanted, {output_gradient})};
}

/// Lengths around multiples of the default tile, on all paths of the kernel that small shapes with
/// few blocks leave out, against the math path in float64.
TEST(AttendBlock, EqualsMathAcrossBlockEdges) {
  torch::manual_seed(moved(1));
  Sizes s{2, 2, 4, 5, 5, 16, 24};
  for (const auto& [L, S] : std::vector<std::pair<int64_t, int64_t>>{
           {255, 257}, {256, 256}, {257, 255}, {513, 385}, {40, 600}, {600, 40}}) {
    s.L = L;
    s.S = S;
    for (const int64_t groups : {2, 1}) {
      s.G = groups;
      const auto inputs = make_inputs(s, at::kFloat);
      const Inputs inputs64 = {inputs.query.to(at::kDouble), inputs.key.to(at::kDouble),
                               inputs.value.to(at::kDouble)};
      const auto gradient = uniform({s.B, s.H, L, s.Dv}, at::kFloat);
      const auto mask = at::rand({s.B, 1, L, S}).gt(0.2);
      const auto bias = uniform({1, s.H, L, S}, at::kFloat);
      for (const auto& options :
           {AttendOptions(), AttendOptions().causal(true), AttendOptions().window(70),
            AttendOptions().causal(true).window(100), AttendOptions().mask(mask).causal(true),
            AttendOptions().bias(bias).window(200),
            AttendOptions().bias(bias.narrow(2, 0, 1)).mask(mask)}) {
        const auto name = "L " + std::to_string(L) + ", S " + std::to_string(S) + ", G " +
                          std::to_string(groups) + (options.causal() ? ", causal" : "") +
                          (options.window() ? ", window" : "") + (options.mask() ? ", mask" : "") +
                          (options.bias() ? ", bias" : "");
        const auto expected =
            compute(AttendPath::math, inputs64, options, gradient.to(at::kDouble));
        const auto actual = compute(AttendPath::block, inputs, options, gradient);
        // Sums of up to 600 terms of size at most 1, of which few are large.
        ASSERT_TRUE(is_close(actual.output, expected.output, 32 * unit_roundoff(at::kFloat)))
            << name;
        ASSERT_TRUE(
            are_close(actual.gradients, expected.gradients, 256 * unit_roundoff(at::kFloat)))
            << name;
      }
    }
  }
}

/// The bits of a result do not depend on the number of threads, for which queries and, in the
/// backward pass, keys are split: many heads, one head of less than a block, and heads of which a
/// block holds several.
TEST(AttendBlock, IsTheSameForAnyNumberOfThreads) {
  struct Case {
    int64_t H, G, L, S;
    std::optional<int64_t> window;
  };
  for (const auto& c :
       {Case{3, 1, 300, 700, {}}, Case{1, 1, 150, 1600, 700}, Case{8, 2, 50, 500, {}}}) {
    torch::manual_seed(moved(2));
    const Sizes s{1, c.H, c.G, c.L, c.S, 8, 8};
    const auto inputs = make_inputs(s, at::kFloat);
    const auto bias = uniform({1, 1, s.L, s.S}, at::kFloat);
    const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, at::kFloat);
    auto options = AttendOptions().bias(bias).causal(true).dropout(0.2);
    options.window(c.window);
    const auto threads = at::get_num_threads();
    const std::vector<int> counts = {1, 2, 5, 16};
    std::vector<Computed> results;
    for (const int count : counts) {
      at::set_num_threads(count);
      torch::manual_seed(moved(3));
      results.push_back(compute(AttendPath::block, inputs, options, gradient));
    }
    at::set_num_threads(threads);
    for (size_t i = 1; i < results.size(); ++i) {
      const auto name = fmt::format("H {}, {} threads", c.H, counts[i]);
      EXPECT_TRUE(are_equal({results[i].output}, {results[0].output})) << name;
      EXPECT_TRUE(are_equal(results[i].gradients, results[0].gradients)) << name;
    }
  }
}

/// Options with learned biases by distance, and the leaves of a call.
struct ByDistance {
  const char* name;
  AttendOptions options;
};

std::vector<ByDistance> calls_by_distance(const Sizes& s) {
  const auto table = [&](int64_t reach) {
    return uniform({s.H, 2 * reach + 1}, at::kFloat).requires_grad_();
  };
  const auto slopes = (uniform({s.B, s.H}, at::kFloat) * 0.1).detach().requires_grad_();
  const auto global = at::arange(s.S).remainder(97).eq(3);
  const auto mask = at::rand({s.B, 1, s.L, s.S}).gt(0.3);
  const auto positions = at::randint(-20, 20, {s.B, s.S}, at::kLong);
  return {
      {"causal", AttendOptions().causal(true).relative_bias(table(30)).alibi_slopes(slopes)},
      {"mask", AttendOptions().mask(mask).relative_bias(table(9)).alibi_slopes(slopes)},
      {"global tokens", AttendOptions().window(60).global_tokens(global).relative_bias(table(200))},
      {"positions", AttendOptions().relative_bias(table(25)).relative_positions(positions)}};
}

Computed compute_by_distance(const Inputs& inputs, const AttendOptions& options,
                             const at::Tensor& output_gradient) {
  const auto leaves = with_grad(inputs);
  std::vector<at::Tensor> wanted = {leaves.query, leaves.key, leaves.value};
  for (const auto& tensor : {options.relative_bias(), options.alibi_slopes()}) {
    if (tensor) wanted.push_back(*tensor);
  }
  const auto output = attend(leaves, options);
  return {output.detach(), grad({output}, wanted, {output_gradient})};
}

/// Sums over all queries and keys, in an order that does not depend on threads either.
TEST(AttendBlock, SumsByDistanceTheSameForAnyNumberOfThreads) {
  const ScopedPath scope(AttendPath::block);
  torch::manual_seed(moved(9));
  const auto threads = at::get_num_threads();
  const std::vector<int> counts = {1, 2, 3, 7, 16};
  for (const auto& s : {Sizes{3, 4, 2, 300, 700, 16, 16}, Sizes{1, 2, 1, 150, 1600, 16, 16},
                        Sizes{2, 8, 2, 50, 500, 16, 16}}) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const auto inputs = make_inputs(s, dtype);
      const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, dtype);
      for (const auto& [name, options] : calls_by_distance(s)) {
        std::vector<Computed> results;
        for (const int count : counts) {
          at::set_num_threads(count);
          results.push_back(compute_by_distance(inputs, options, gradient));
        }
        at::set_num_threads(threads);
        for (size_t i = 1; i < results.size(); ++i) {
          const auto at_count =
              fmt::format("L {}, {}, {}, {} threads", s.L, name, c10::toString(dtype), counts[i]);
          EXPECT_TRUE(are_equal({results[i].output}, {results[0].output})) << at_count;
          EXPECT_TRUE(are_equal(results[i].gradients, results[0].gradients)) << at_count;
        }
      }
    }
  }
}

/// Lengths of several tiles, beside LibTorch's operators in float64. bfloat16 is multiplied in
/// pairs where the processor can.
TEST(AttendBlock, SumsByDistanceAcrossBlockEdges) {
  torch::manual_seed(moved(10));
  for (const auto& s : {Sizes{2, 4, 2, 257, 600, 16, 24}, Sizes{1, 2, 2, 600, 600, 16, 16},
                        Sizes{2, 2, 1, 31, 1040, 16, 8}}) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const auto inputs = make_inputs(s, dtype);
      const Inputs inputs64 = {inputs.query.to(at::kDouble), inputs.key.to(at::kDouble),
                               inputs.value.to(at::kDouble)};
      const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, dtype);
      for (const auto& [name, options] : calls_by_distance(s)) {
        const auto run = [&, &options = options](AttendPath path, const Inputs& given) {
          const ScopedPath scope(path);
          return compute_by_distance(given, options, gradient.to(given.query.scalar_type()));
        };
        const auto expected = run(AttendPath::math, inputs64);
        const auto actual = run(AttendPath::block, inputs);
        const auto tolerance = dtype == at::kBFloat16 ? 8 * unit_roundoff(dtype) : 1e-5;
        EXPECT_TRUE(is_close(actual.output, expected.output, tolerance)) << name << ", " << dtype;
        EXPECT_TRUE(are_alike(actual.gradients, expected.gradients, 4 * tolerance))
            << name << ", " << dtype;
      }
    }
  }
}

/// The weights that dropout keeps depend on the seed and their places alone: not on tiles, not on
/// the instruction set, not on the dtype.
TEST(AttendBlock, DropsTheSameWeightsHoweverItComputes) {
  const Sizes s{2, 2, 1, 70, 100, 8, 8};
  const auto inputs = make_inputs(s, at::kDouble);
  const auto run = [&](const Route& route, at::ScalarType dtype) {
    const ScopedRoute in_force(route);
    torch::manual_seed(moved(4));
    return attend(inputs.query.to(dtype), inputs.key.to(dtype), inputs.value.to(dtype),
                  AttendOptions().dropout(0.3).window(60));
  };
  const auto all = routes();
  const auto expected = run(all.back(), at::kDouble);
  for (const auto& route : all) {
    if (route.path != AttendPath::block) continue;
    EXPECT_TRUE(is_close(run(route, at::kDouble), expected, 1e-14)) << route.name;
    EXPECT_TRUE(is_close(run(route, at::kFloat), expected, 1e-5)) << route.name;
    EXPECT_TRUE(is_close(run(route, at::kHalf), expected, 1e-2)) << route.name;
  }
}

/// The weights after dropout, read off the output: with the unit vectors as values.
at::Tensor dropped_weights(const Inputs& inputs, AttendOptions options, int64_t key_length) {
  const auto unit = at::eye(key_length, inputs.query.options())
                        .expand({inputs.key.size(0), inputs.key.size(1), key_length, key_length});
  return attend(inputs.query, inputs.key, unit, options);
}

TEST(AttendBlock, DifferentiatesThroughItsDropout) {
  const ScopedPath scope(AttendPath::block);
  torch::manual_seed(moved(5));
  const Sizes s{2, 4, 2, 37, 41, 8, 8};
  for (const bool causal : {false, true}) {
    const auto inputs = with_grad(make_inputs(s, at::kDouble));
    const auto bias = uniform({1, s.H, 1, s.S}, at::kDouble).requires_grad_();
    const auto options = AttendOptions().causal(causal).dropout(0.3).bias(bias);
    torch::manual_seed(moved(6));
    const auto weights = dropped_weights(inputs, options, s.S);
    torch::manual_seed(moved(6));
    const auto output = attend(inputs, options);
    const auto gradient = uniform(output.sizes(), at::kDouble);
    auto input = reference_input(inputs, options, gradient);
    input.kept = weights.detach().ne(0).to(at::kDouble) / 0.7;
    const auto expected = reference_attention(input);
    EXPECT_TRUE(is_close(weights, expected.weights, 1e-14));
    EXPECT_TRUE(is_close(output, expected.output, 1e-14));
    const auto gradients =
        grad({output}, {inputs.query, inputs.key, inputs.value, bias}, {gradient});
    EXPECT_TRUE(is_close(gradients[0], expected.query_grad, 1e-13));
    EXPECT_TRUE(is_close(gradients[1], expected.key_grad, 1e-13));
    EXPECT_TRUE(is_close(gradients[2], expected.value_grad, 1e-13));
    EXPECT_TRUE(is_close(gradients[3], expected.bias_grad, 1e-13));
  }
}

TEST(AttendBlock, GivesOnlyTheGradientsAskedFor) {
  const ScopedPath scope(AttendPath::block);
  torch::manual_seed(moved(7));
  const Sizes s;
  const auto all = with_grad(make_inputs(s, at::kDouble));
  const auto expected = grad({attend(all).sum()}, {all.query, all.key, all.value});
  const std::vector<at::Tensor> leaves = {all.query, all.key, all.value};
  for (size_t i = 0; i < 3; ++i) {
    auto some = leaves;
    for (size_t j = 0; j < 3; ++j) {
      if (j != i) some[j] = some[j].detach();
    }
    const auto actual = grad({attend(some[0], some[1], some[2]).sum()}, {some[i]});
    EXPECT_TRUE(actual[0].equal(expected[i])) << "input " << i;
  }
}

/// A gradient penalty, beside the same by operators; tensors in two places, biases and sinks.
TEST(AttendBlock, HasASecondDerivative) {
  torch::manual_seed(moved(7));
  Sizes sizes;
  sizes.L = sizes.S = 6;
  for (const bool shared : {false, true}) {
    const auto all = with_grad(make_inputs(sizes, at::kDouble));
    const auto key = shared ? all.query : all.key, value = shared ? all.query : all.value;
    const auto bias = uniform({sizes.L, sizes.S}, at::kDouble).requires_grad_();
    const auto sinks = uniform({sizes.H}, at::kDouble).requires_grad_();
    const auto relative = uniform({sizes.H, 5}, at::kDouble).requires_grad_();
    const auto slopes = uniform({sizes.B, sizes.H}, at::kDouble).requires_grad_();
    const auto options = AttendOptions()
                             .causal(true)
                             .bias(bias)
                             .sinks(sinks)
                             .softcap(2.0)
                             .relative_bias(relative)
                             .alibi_slopes(slopes);
    std::vector<at::Tensor> inputs = {all.query, bias, sinks, relative, slopes};
    if (!shared) inputs.insert(inputs.end(), {key, value});
    const auto direction = uniform(all.query.sizes(), at::kDouble);
    const auto penalty = [&](AttendPath path) {
      const ScopedPath scope(path);
      const auto output = attend(all.query, key, value, options);
      const auto first = grad({(output * direction).sum()}, inputs, {}, /*retain_graph=*/true,
                              /*create_graph=*/true);
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (const auto& gradient : first) sum = sum + gradient.square().sum();
      return grad({sum}, inputs);
    };
    const auto actual = penalty(AttendPath::block), expected = penalty(AttendPath::math);
    EXPECT_TRUE(are_close(actual, expected, 1e-12)) << shared;
  }
  const ScopedPath scope(AttendPath::block);
  const auto inputs = with_grad(make_inputs(sizes, at::kFloat));
  const auto output = attend(inputs, AttendOptions().dropout(0.5));
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] {
              grad({output.sum()}, {inputs.query}, {}, /*retain_graph=*/true,
                   /*create_graph=*/true);
            }),
            "attend: dropout has no second derivative: its draws are made for one backward pass");
}

/// NaN and inf reach what they reach in a softmax, and nothing else. (LibTorch's fused kernel gives
/// 0 for a query that holds NaN.)
TEST(AttendBlock, PassesNonFiniteInputsOn) {
  torch::manual_seed(moved(8));
  const Sizes s{1, 1, 1, 5, 5, 8, 8};
  auto clean = make_inputs(s, at::kFloat);
  // Some product with inf is +inf: a query of which all are -inf looks as one that sees no key.
  clean.query.select(3, 1).abs_();
  clean.key.select(3, 1).abs_();
  const auto run = [](AttendPath path, const Inputs& inputs, at::ScalarType dtype) {
    const ScopedPath scope(path);
    return attend(inputs.query.to(dtype), inputs.key.to(dtype), inputs.value.to(dtype))
        .to(at::kFloat);
  };
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int which = 0; which < 3; ++which) {
      Inputs inputs = {clean.query.clone(), clean.key.clone(), clean.value.clone()};
      auto* poisoned = which == 0 ? &inputs.query : which == 1 ? &inputs.key : &inputs.value;
      (*poisoned)[0][0][2][1] = poison;
      const auto expected = run(AttendPath::math, inputs, at::kFloat);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const auto actual = run(AttendPath::block, inputs, dtype);
        // Inputs of at most 1 and the output, rounded.
        const auto tolerance = 8 * unit_roundoff(dtype);
        EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance, /*equal_nan=*/true))
            << "poison " << poison << " in input " << which << ", " << dtype << "\n"
            << actual << expected;
      }
    }
  }
}

/// The largest scores are found in the product unless something changes the scores after it, which
/// a bias of 0 only seems to do.
TEST(AttendBlock, ABiasOfZeroChangesNoBit) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  const ScopedPath scope(AttendPath::block);
  Sizes s{1, 2, 2, 5, 5, 16, 16};
  for (const auto& [L, S] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1040}, {37, 512}, {70, 1100}, {300, 528}, {600, 600}}) {
    s.L = L;
    s.S = S;
    const auto i = at::arange(L).unsqueeze(1), j = at::arange(S);
    const auto blocks = (i.floor_divide(16) + j.floor_divide(32)).remainder(3).ne(0);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      auto inputs = make_inputs(s, dtype);
      // Some queries have their largest score in the first keys, some in the last.
      inputs.key.mul_((at::arange(S).sub(S / 2) * (8.0 / S)).view({1, 1, S, 1}));
      const auto bias = at::zeros({1, s.H, 1, S}, dtype);
      for (auto options :
           {AttendOptions(), AttendOptions().causal(true).window(700), AttendOptions().mask(blocks),
            AttendOptions().mask(j.lt(S - 20).expand({L, S})),
            AttendOptions().mask(at::rand({L, S}).gt(0.3)),
            AttendOptions().sinks(at::ones({s.H}, dtype))}) {
        const auto expected = attend(inputs, options.bias(bias));
        const auto actual = attend(inputs, options.bias({}));
        EXPECT_TRUE(at::equal(actual, expected)) << "L " << L << ", S " << S << ", " << dtype;
      }
    }
  }
}

/// No tensor of L x S, in the forward and in the backward pass, whatever the options.
TEST(AttendBlock, NeedsMemoryLinearInTheLength) {
  const ScopedPath scope(AttendPath::block);
  const ThreadsGuard guard(2);  // each thread has memory of its own
  const auto peak = [](int64_t length) {
    const Sizes s{1, 2, 2, length, length, 16, 16};
    const auto inputs = with_grad(make_inputs(s, at::kFloat));
    const auto bias = at::zeros({1, s.H, 1, length}).requires_grad_();
    auto options = AttendOptions().bias(bias).dropout(0.1).causal(true).window(64);
    options.documents(at::arange(length).floor_divide(1000));
    const AllocationCounter counter;
    const auto output = attend(inputs, options);
    output.sum().backward();
    return counter.peak();
  };
  const auto once = peak(4096);
  EXPECT_LT(peak(16384), 4.1 * static_cast<double>(once));
  EXPECT_LT(once, 4096 * 4096);  // bytes: a quarter of one L x S matrix
}

/// Windows, global tokens and biases by distance need no matrix of L x S.
TEST(AttendBlock, NeedsMemoryLinearInTheLengthByDistance) {
  const ScopedPath scope(AttendPath::block);
  const ThreadsGuard guard(2);  // each thread has memory of its own
  const auto peak = [](int64_t length) {
    const Sizes s{1, 2, 2, length, length, 16, 16};
    const auto inputs = with_grad(make_inputs(s, at::kFloat));
    const auto relative = at::zeros({s.H, 257}).requires_grad_();
    const auto slopes = at::zeros({s.B, s.H}).requires_grad_();
    const auto options = AttendOptions()
                             .left_window(64)
                             .right_window(32)
                             .global_tokens(at::arange(length).lt(4))
                             .relative_bias(relative)
                             .alibi_slopes(slopes)
                             .key_lengths(at::full({1}, length - 5, at::kLong));
    const AllocationCounter counter;
    const auto output = attend(inputs, options);
    output.sum().backward();
    return counter.peak();
  };
  const auto once = peak(8192);
  EXPECT_LT(peak(32768), 4.1 * static_cast<double>(once));
  EXPECT_LT(once, 8192 * 8192);  // bytes: a quarter of one L x S matrix
}

/// One key head, whose gradients many query heads add up to: float32 sums of bfloat16 gradients,
/// and each thread's scratch, a few tiles of 256 x 512.
TEST(AttendBlock, NeedsTwiceTheGradientsToComputeThem) {
  constexpr int64_t kScratch = 3 << 20;
  const auto before = at::get_num_threads();
  const Sizes s{1, 8, 1, 8192, 8192, 64, 64};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto inputs = with_grad(make_inputs(s, dtype));
    const auto options = AttendOptions().causal(true).window(64);
    for (const int threads : {1, 8}) {
      at::set_num_threads(threads);
      const auto output = attend(inputs, options);
      const auto gradient = at::ones_like(output);
      const AllocationCounter counter;
      const auto gradients = grad({output}, {inputs.query, inputs.key, inputs.value}, {gradient});
      int64_t own = 0;
      for (const auto& tensor : gradients) own += static_cast<int64_t>(tensor.nbytes());
      EXPECT_LT(counter.peak() - own, 2 * own + threads * kScratch) << dtype << ", " << threads;
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace heed::test
