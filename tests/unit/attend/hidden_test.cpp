// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <limits>

#include "attend/attend_lengths.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

// Keys that mask, causal, windows, documents and lengths hide have no influence on any result.

namespace heed::test::hidden {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct HidingCase {
  std::string name;
  Sizes sizes;
  AttendOptions options;
};

std::vector<HidingCase> hiding_cases() {
  const Sizes square{2, 4, 2, 70, 70, 16, 24};
  auto longer = square;
  longer.L = 40;
  auto shorter = square;
  shorter.S = 40;
  auto few = square;
  few.L = 3;
  few.S = 200;
  auto mask = at::rand({70, 70}).gt(0.5);
  mask.narrow(0, 20, 25).fill_(false);
  mask.narrow(1, 30, 20).fill_(false);
  const auto documents = at::arange(70).floor_divide(19);
  const auto sinks = at::rand({square.H});
  const auto global = at::arange(70).remainder(23).eq(5);
  const auto lengths = [](std::vector<int64_t> numbers) { return at::tensor(numbers, at::kLong); };
  const auto padded =
      AttendOptions().query_lengths(lengths({70, 33})).key_lengths(lengths({40, 66}));
  const auto relative = uniform({square.H, 9}, at::kFloat);
  const auto slopes = uniform({square.B, square.H}, at::kFloat) * 0.1;
  return {
      {"mask", square, AttendOptions().mask(mask)},
      {"mask and softcap", square, AttendOptions().mask(mask).softcap(2.0)},
      {"mask and causal", square, AttendOptions().mask(mask).causal(true).sinks(sinks)},
      {"padding", square,
       AttendOptions().mask(padding_mask(at::tensor({0, 33}, at::kLong), 70)).sinks(sinks)},
      {"documents", square, AttendOptions().documents(documents)},
      {"documents, mask and window", square,
       AttendOptions().documents(documents).mask(mask).window(9)},
      {"other documents", longer,
       AttendOptions().documents(documents.narrow(0, 30, 40)).key_documents(documents)},
      {"causal, L > S", shorter, AttendOptions().causal(true).softcap(3.0).sinks(sinks)},
      {"few queries", few, AttendOptions().mask(at::rand({3, 200}).gt(0.5)).causal(true)},
      {"few queries and a window", few, AttendOptions().window(20).causal(true)},
      {"few queries and documents", few,
       AttendOptions()
           .documents(at::tensor({0, 5, 2}, at::kLong))
           .key_documents(at::arange(200).floor_divide(67))},
      {"two sides, L > S", shorter, AttendOptions().left_window(2).right_window(1)},
      {"two sides and a relative bias", longer,
       AttendOptions().left_window(3).right_window(9).relative_bias(relative)},
      {"global tokens and mask", square,
       AttendOptions().left_window(1).right_window(3).global_tokens(global).mask(mask)},
      {"global tokens and causal", longer,
       AttendOptions().window(5).global_tokens(global).causal(true).alibi_slopes(slopes)},
      {"few queries and global tokens", few,
       AttendOptions()
           .left_window(20)
           .global_tokens(at::arange(200).remainder(90).eq(1))
           .causal(true)},
      {"lengths", square, AttendOptions(padded).causal(true).sinks(sinks)},
      {"lengths and distances", square,
       AttendOptions(padded).relative_bias(relative).alibi_slopes(slopes).softcap(2.0)},
      {"lengths and global tokens", square,
       AttendOptions(padded).window(4).global_tokens(global).top_left(true)},
      {"lengths of few queries", few,
       AttendOptions().causal(true).relative_bias(relative).key_lengths(lengths({0, 130}))},
      {"top left", longer, AttendOptions().top_left(true).causal(true)},
      {"top left and a window, L > S", shorter, AttendOptions().top_left(true).window(3)},
  };
}

/// A copy of `tensor` [B, G, S, D] with the strides it has, on which rounding depends, and with
/// `poison` where `shown` [B, G, S] is false.
at::Tensor poisoned(const at::Tensor& tensor, const at::Tensor& shown, float poison) {
  return tensor.detach().clone().masked_fill_(shown.logical_not().unsqueeze(3), poison);
}

struct Results {
  std::vector<at::Tensor> tensors;  // output, and gradients where there are some
};

Results results_of(const Inputs& inputs, const AttendOptions& options,
                   const at::Tensor& output_gradient) {
  if (!output_gradient.defined()) {
    const at::NoGradGuard no_grad;
    return {{attend(inputs, options)}};
  }
  std::vector<at::Tensor> leaves;
  for (const auto& tensor : {inputs.query, inputs.key, inputs.value}) {
    leaves.push_back(tensor.detach().requires_grad_());
  }
  auto own = options;
  for (auto* const tensor : {&own.sinks(), &own.relative_bias(), &own.alibi_slopes()}) {
    if (*tensor) leaves.push_back(tensor->emplace((*tensor)->detach().requires_grad_()));
  }
  const auto output = attend(leaves[0], leaves[1], leaves[2], own);
  Results results{{output.detach()}};
  for (const auto& gradient : torch::autograd::grad({output}, leaves, {output_gradient})) {
    results.tensors.push_back(gradient);
  }
  return results;
}

/// LibTorch's products round by the strides of tensors, and its kernel of attention is given
/// nothing that is not finite: heed's takes over.
bool is_own(const Route& route) {
  const bool is_ours =
      !route.path || *route.path == AttendPath::block || *route.path == AttendPath::decode;
  return detail::has_kernels() && is_ours;
}

void expect_same(const Results& actual, const Results& expected, bool to_the_bit, double tolerance,
                 const std::string& name) {
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    const auto& x = actual.tensors[i];
    const auto& y = expected.tensors[i];
    EXPECT_TRUE(to_the_bit ? x.equal(y) : is_close(x, y, tolerance)) << name << ", result " << i;
  }
}

class Hidden : public ::testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, Hidden, kDtypes, kNamed);

/// Keys and values that no query sees; queries, and gradients of outputs, that see no key.
TEST_P(Hidden, HasNoInfluence) {
  torch::manual_seed(moved(11));
  for (const auto& c : hiding_cases()) {
    const auto inputs = make_inputs(c.sizes, GetParam());
    const auto seen = dense_mask(inputs, c.options);
    const auto& s = c.sizes;
    const auto keys = seen.any(2).view({s.B, s.G, s.H / s.G, s.S}).any(2);
    const auto queries = seen.any(3);
    const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, GetParam());
    for (const auto& route : all_routes()) {
      const ScopedRoute in_force(route);
      for (const bool training : {false, true}) {
        const auto clean = results_of(inputs, c.options, training ? gradient : at::Tensor());
        for (const float poison : {kNaN, kInfinity, -kInfinity}) {
          const Inputs changed = {poisoned(inputs.query, queries, poison),
                                  poisoned(inputs.key, keys, poison),
                                  poisoned(inputs.value, keys, poison)};
          const auto actual = results_of(
              changed, c.options, training ? poisoned(gradient, queries, poison) : at::Tensor());
          expect_same(actual, clean, is_own(route), 16 * forward_tolerance(GetParam()),
                      c.name + ", " + route.name + (training ? ", training" : ""));
        }
      }
    }
  }
}

/// A document that holds NaN leaves the others alone, and shows in all that sees it.
TEST_P(Hidden, NaNShowsOnlyWhereItIsSeen) {
  torch::manual_seed(moved(12));
  const Sizes s{2, 4, 2, 90, 90, 16, 16};
  const auto inputs = make_inputs(s, GetParam());
  const auto ids = at::arange(s.L).floor_divide(30);
  const auto of_second = ids.eq(1);
  const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, GetParam());
  const std::vector<std::pair<std::string, AttendOptions>> ways = {
      {"documents", AttendOptions().documents(ids)},
      {"mask", AttendOptions().mask(document_mask(ids)).causal(true)}};
  for (const auto& [name, options] : ways) {
    for (const auto& route : all_routes()) {
      const ScopedRoute in_force(route);
      const auto clean = results_of(inputs, options, gradient);
      for (int which = 0; which < 4; ++which) {
        Inputs changed = {inputs.query.clone(), inputs.key.clone(), inputs.value.clone()};
        auto changed_gradient = gradient.clone();
        at::Tensor* const tensors[] = {&changed.query, &changed.key, &changed.value,
                                       &changed_gradient};
        tensors[which]->select(2, 30).select(2, 3).fill_(kNaN);
        const auto actual = results_of(changed, options, changed_gradient);
        for (size_t i = 0; i < actual.tensors.size(); ++i) {
          const auto& tensor = actual.tensors[i];
          const auto others = of_second.logical_not().nonzero().squeeze(1);
          const auto actual_rows = tensor.index_select(2, others);
          const auto clean_rows = clean.tensors[i].index_select(2, others);
          EXPECT_TRUE(is_own(route)
                          ? actual_rows.equal(clean_rows)
                          : is_close(actual_rows, clean_rows, 16 * forward_tolerance(GetParam())))
              << name << ", " << route.name << ", NaN in " << which << ", result " << i;
        }
        // The second document's last query sees all of it.
        EXPECT_TRUE(which == 3 || which == 0 ||
                    actual.tensors[0].select(2, 59).isnan().any().item<bool>())
            << name << ", " << route.name << ", NaN in " << which;
      }
    }
  }
}

/// Sequences of which only the first tokens exist, on every route and beside the reference of each
/// sequence alone.
TEST_P(Hidden, BeyondALengthIsNothing) {
  torch::manual_seed(moved(15));
  const Sizes s{3, 4, 2, 40, 70, 16, 16};
  const std::vector<int64_t> query_lengths = {40, 12, 0}, key_lengths = {70, 33, 5};
  const auto inputs = make_inputs(s, GetParam());
  const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, GetParam());
  Inputs changed = {inputs.query.clone(), inputs.key.clone(), inputs.value.clone()};
  auto changed_gradient = gradient.clone();
  for (int64_t b = 0; b < s.B; ++b) {
    const auto end = query_lengths[static_cast<size_t>(b)];
    const auto key_end = key_lengths[static_cast<size_t>(b)];
    changed.query[b].narrow(1, end, s.L - end).fill_(kNaN);
    changed_gradient[b].narrow(1, end, s.L - end).fill_(kNaN);
    changed.key[b].narrow(1, key_end, s.S - key_end).fill_(kInfinity);
    changed.value[b].narrow(1, key_end, s.S - key_end).fill_(kNaN);
  }
  const auto slopes = at::rand({s.H});
  for (const auto& options : {AttendOptions().causal(true), AttendOptions().alibi_slopes(slopes),
                              AttendOptions().causal(true).window(20)}) {
    for (const auto& route : all_routes()) {
      const ScopedRoute in_force(route);
      std::vector<at::Tensor> leaves;
      for (const auto& tensor : {changed.query, changed.key, changed.value}) {
        leaves.push_back(tensor.detach().requires_grad_());
      }
      const auto run = [&] {
        return detail::attend_lengths("f", leaves[0], leaves[1], leaves[2],
                                      at::tensor(query_lengths), at::tensor(key_lengths), options);
      };
      const auto output = run();
      {
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(is_close(run(), output, forward_tolerance(GetParam(), 8))) << route.name;
      }
      const auto gradients = torch::autograd::grad({output}, leaves, {changed_gradient});
      for (int64_t b = 0; b < s.B; ++b) {
        const auto rows = [&](const at::Tensor& x, const std::vector<int64_t>& lengths) {
          return x.narrow(0, b, 1).narrow(2, 0, lengths[static_cast<size_t>(b)]);
        };
        const auto rest = [&](const at::Tensor& x, const std::vector<int64_t>& lengths) {
          const auto end = lengths[static_cast<size_t>(b)];
          return x.narrow(0, b, 1).narrow(2, end, x.size(2) - end);
        };
        const Inputs own = {rows(inputs.query, query_lengths), rows(inputs.key, key_lengths),
                            rows(inputs.value, key_lengths)};
        const auto expected = reference(own, options, rows(gradient, query_lengths));
        const auto check = [&](const at::Tensor& x, const at::Tensor& y,
                               const std::vector<int64_t>& lengths, double tolerance) {
          EXPECT_TRUE(is_close(rows(x, lengths), y, tolerance)) << route.name << ", " << b;
          EXPECT_TRUE(rest(x, lengths).eq(0).all().item<bool>()) << route.name << ", " << b;
        };
        const auto tolerance = forward_tolerance(GetParam(), /*largest_score=*/50);
        check(output, expected.output, query_lengths, tolerance);
        check(gradients[0], expected.query_grad, query_lengths, 16 * tolerance);
        check(gradients[1], expected.key_grad, key_lengths, 16 * tolerance);
        check(gradients[2], expected.value_grad, key_lengths, 16 * tolerance);
      }
    }
  }
}

/// Masks in whole blocks, in stripes, and at random.
std::vector<std::pair<std::string, at::Tensor>> masks_with_hidden_tiles(int64_t L, int64_t S) {
  const auto i = at::arange(L).unsqueeze(1), j = at::arange(S).unsqueeze(0);
  const auto blocks = at::rand({(L + 63) / 64, (S + 63) / 64})
                          .lt(0.3)
                          .repeat_interleave(64, 0)
                          .repeat_interleave(64, 1)
                          .narrow(0, 0, L)
                          .narrow(1, 0, S);
  return {{"documents", i.floor_divide(100).eq(j.floor_divide(100))},
          {"blocks", blocks},
          {"stripes", (i - j).remainder(128).eq(0).logical_or((i - j).abs().lt(10))},
          {"prefix", j.lt(100).logical_or(j.le(i))},
          {"first keys", j.lt(77).expand({L, S})},
          {"one key", j.eq(301).expand({L, S})},
          {"nothing", j.lt(0).expand({L, S})}};
}

/// A bias of -inf hides too, but no tile of it is left out.
TEST(HiddenTiles, AreLeftOutWithoutATrace) {
  torch::manual_seed(moved(13));
  const Sizes s{1, 4, 2, 500, 600, 24, 24};
  const auto inputs = make_inputs(s, at::kFloat);
  const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, at::kFloat);
  for (const auto& [name, mask] : masks_with_hidden_tiles(s.L, s.S)) {
    const auto bias = at::where(mask, 0.0, -static_cast<double>(kInfinity)).to(at::kFloat);
    for (const auto& route : routes()) {
      if (route.path != AttendPath::block) continue;
      const ScopedRoute in_force(route);
      for (const bool causal : {false, true}) {
        const auto skipped =
            results_of(inputs, AttendOptions().mask(mask).causal(causal), gradient);
        const auto computed =
            results_of(inputs, AttendOptions().bias(bias).causal(causal), gradient);
        expect_same(skipped, computed, /*to_the_bit=*/true, 0.0, name + ", " + route.name);
        const auto [output, weights] =
            attend_with_weights(inputs, AttendOptions().mask(mask).causal(causal));
        const auto [same, same_weights] =
            attend_with_weights(inputs, AttendOptions().bias(bias).causal(causal));
        EXPECT_TRUE(output.equal(same)) << name << ", " << route.name;
        EXPECT_TRUE(weights.equal(same_weights)) << name << ", " << route.name;
      }
    }
  }
}

TEST(HiddenTiles, AreThoseOfWindowsThatGlobalTokensLift) {
  torch::manual_seed(moved(16));
  const Sizes s{2, 2, 1, 300, 400, 24, 24};
  const auto inputs = make_inputs(s, at::kFloat);
  const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, at::kFloat);
  const std::vector<std::pair<std::string, at::Tensor>> tokens = {
      {"few", at::arange(400).remainder(211).eq(7)},
      {"the first", at::arange(400).lt(20)},
      {"of each batch", at::rand({s.B, s.S}).lt(0.05)},
      {"none", at::zeros({400}, at::kBool)},
      {"all", at::ones({400}, at::kBool)}};
  for (const auto& [name, global] : tokens) {
    for (const auto& window : {AttendOptions().window(9), AttendOptions().left_window(70),
                               AttendOptions().left_window(3).right_window(40).top_left(true)}) {
      for (const bool causal : {false, true}) {
        const auto options = AttendOptions(window).global_tokens(global).causal(causal);
        const auto mask = AttendOptions().mask(dense_mask(inputs, options));
        for (const auto& route : routes()) {
          if (route.path != AttendPath::block) continue;
          const ScopedRoute in_force(route);
          expect_same(results_of(inputs, options, gradient), results_of(inputs, mask, gradient),
                      /*to_the_bit=*/true, 0.0, name + ", " + route.name);
        }
      }
    }
  }
}

TEST(HiddenTiles, AreThoseOfDocumentsToo) {
  torch::manual_seed(moved(14));
  Sizes s;
  s.L = s.S = 300;
  const auto inputs = make_inputs(s, at::kFloat);
  const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, at::kFloat);
  const std::vector<std::pair<std::string, at::Tensor>> ids = {
      {"in order", at::arange(300).floor_divide(70)},
      {"of each batch", at::stack({at::arange(300).floor_divide(70), at::zeros({300}, at::kLong)})},
      {"out of order", at::randint(-2, 3, {2, 300}, at::kLong)},
      {"all the same", at::full({300}, -7, at::kInt)}};
  for (const auto& [name, documents] : ids) {
    const auto mask = document_mask(documents);
    for (const auto& route : routes()) {
      if (route.path != AttendPath::block) continue;
      const ScopedRoute in_force(route);
      expect_same(results_of(inputs, AttendOptions().documents(documents), gradient),
                  results_of(inputs, AttendOptions().mask(mask), gradient),
                  /*to_the_bit=*/true, 0.0, name + ", " + route.name);
    }
  }
}

}  // namespace
}  // namespace heed::test::hidden
