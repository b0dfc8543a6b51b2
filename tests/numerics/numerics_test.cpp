// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/block/block.h"
#include "errors.h"
#include "numerics_cases.h"
#include "support/expect.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

/// The largest errors of a case in a dtype, over all routes, in roundoffs.
struct Seen {
  double output = 0, gradients = 0;
};

std::map<std::pair<std::string, at::ScalarType>, Seen>& seen() {
  static std::map<std::pair<std::string, at::ScalarType>, Seen> all;
  return all;
}

/// The routes of attend's tests, decoding on all instruction sets, and that of attend_with_weights.
std::vector<Route> all_routes(at::ScalarType dtype) {
  auto all = routes();
  all.push_back({"math", AttendPath::math, {}, {}});
  if (dtype == at::kDouble) return all;
  for (const auto* set : detail::instruction_sets()) {
    all.push_back({"decode", AttendPath::decode, set, {}});
  }
  return all;
}

class Comparison {
 public:
  Comparison(const NumericsCase& c, const Bound& bound)
      : bound_(bound),
        settled_(c.scores_settled),
        inputs_(c.make(c.sizes, bound.dtype)),
        gradient_(uniform({c.sizes.B, c.sizes.H, c.sizes.L, c.sizes.Dv}, bound.dtype) *
                  (bound.dtype == at::kHalf ? c.half_gradient : 1)),
        exact_(reference(inputs_, {}, gradient_)) {
    const Operands operands{inputs_.query,
                            inputs_.key,
                            inputs_.value,
                            gradient_,
                            precise_weights(exact_.weights, bound.dtype),
                            1 / std::sqrt(static_cast<double>(c.sizes.D))};
    sums_ = term_sums(operands);
    const auto computed = unit_roundoff(bound.computed_in) / unit_roundoff(bound.dtype);
    of_length_ = bound.length * std::sqrt(static_cast<double>(c.sizes.S)) * computed;
    of_scores_ = 4 * largest_score(operands) * computed;
  }

  void compare(const Route& route) {
    const ScopedRoute in_force(route);
    const bool decode = route.path == AttendPath::decode;
    const auto leaf = [&](const at::Tensor& tensor) {
      return tensor.detach().requires_grad_(!decode);
    };
    const auto query = leaf(inputs_.query), key = leaf(inputs_.key), value = leaf(inputs_.value);
    const auto path = attend_path(query, key, value);
    const auto output = attend(query, key, value);
    const auto of_scores = settled_ ? 0 : of_scores_;
    // LibTorch's paths add up one term after another: 0.7 sqrt(S) was the largest of 40 seeds.
    const bool ours = path == AttendPath::block || path == AttendPath::decode;
    const auto of_length = (ours ? 1 : 3) * of_length_;
    const auto check_output = [&](const char* what, const at::Tensor& computed) {
      const auto error = checked(route.name + what, computed, exact_.output, sums_.output,
                                 bound_.output + of_length + of_scores);
      seen_.output = std::max(seen_.output, error);
    };
    check_output(", output", output);
    if (route.path == AttendPath::block) {
      const at::NoGradGuard no_grad;
      check_output(", inference", attend(query, key, value));
      check_output(", with weights", std::get<0>(attend_with_weights(query, key, value)));
    }
    // LibTorch's kernel keeps the largest score + log(sum) in one number, rounded like a score.
    const bool keeps_log = path == AttendPath::fused;
    if (decode || (keeps_log && of_scores_ * unit_roundoff(bound_.dtype) > 1)) return;
    const auto allowed = bound_.gradients + of_length + (keeps_log ? of_scores_ : of_scores);
    const auto gradients = torch::autograd::grad({output}, {query, key, value}, {gradient_});
    const auto error = std::max(
        {checked(route.name + ", query", gradients[0], exact_.query_grad, sums_.query_grad,
                 allowed),
         checked(route.name + ", key", gradients[1], exact_.key_grad, sums_.key_grad, allowed),
         checked(route.name + ", value", gradients[2], exact_.value_grad, sums_.value_grad,
                 allowed)});
    seen_.gradients = std::max(seen_.gradients, error);
  }

  const Seen& seen() const { return seen_; }

 private:
  static double checked(const std::string& what, const at::Tensor& actual, const at::Tensor& exact,
                        const at::Tensor& sum, double allowed) {
    constexpr double kFloor = 64;  // steps: about one for each of the H / G * L terms of a sum
    // A key far from the others can make a gradient larger than float16's largest number.
    const auto dtype = actual.scalar_type();
    const double largest = dtype == at::kHalf ? 65504 : std::numeric_limits<double>::infinity();
    const auto infinite = exact.abs() + allowed * unit_roundoff(dtype) * sum >= largest;
    EXPECT_FALSE(actual.isnan().any().item<bool>()) << what;
    const auto number = actual.masked_fill(infinite, 0);
    EXPECT_TRUE(is_finite(number)) << what;
    const auto error = roundoffs(number, exact.masked_fill(infinite, 0), sum, kFloor);
    EXPECT_LE(error, allowed) << what;
    return error;
  }

  const Bound& bound_;
  bool settled_;
  Inputs inputs_;
  at::Tensor gradient_;
  ReferenceResult exact_;
  TermSums sums_;
  double of_length_ = 0, of_scores_ = 0;  // in roundoffs of the dtype
  Seen seen_;
};

class Numerics : public ::testing::TestWithParam<Bound> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, Numerics, ::testing::ValuesIn(bounds()), [](const auto& info) {
  return std::string(c10::toString(info.param.dtype));
});

TEST_P(Numerics, KeepTheBoundsOnEveryPath) {
  const auto& bound = GetParam();
  torch::manual_seed(moved(1));
  for (const auto& c : numerics_cases()) {
    SCOPED_TRACE(c.name);
    Comparison comparison(c, bound);
    for (const auto& route : all_routes(bound.dtype)) comparison.compare(route);
    seen()[{c.name, bound.dtype}] = comparison.seen();
  }
}

/// Gradients of scores are differences of sums that grow with the mean of the values. No more than
/// the gradients themselves may be rounded to the dtype, and those of scores where products are of
/// bfloat16.
TEST(Numerics, GradientsDoNotErrWithTheMeanOfValues) {
  torch::manual_seed(moved(1));
  const Sizes sizes{1, 4, 2, 64, 80, 32, 32};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double mean : {0, 10, 100, 1000}) {
      auto inputs = make_inputs(sizes, dtype);
      inputs.value = (inputs.value * (1 + mean / 64) + mean).to(dtype);
      const auto gradient = uniform({sizes.B, sizes.H, sizes.L, sizes.Dv}, dtype);
      const auto exact = reference(inputs, {}, gradient);
      for (const bool chosen : {true, false}) {
        std::optional<detail::ScopedPath> scope;
        if (!chosen) scope.emplace(AttendPath::block);
        const auto query = inputs.query.detach().requires_grad_();
        const auto key = inputs.key.detach().requires_grad_();
        const auto gradients =
            torch::autograd::grad({attend(query, key, inputs.value)}, {query, key}, {gradient});
        const auto check = [&](const at::Tensor& actual, const at::Tensor& expected) {
          const auto error = (actual.to(at::kDouble) - expected).abs().max().item<double>();
          const auto largest = expected.abs().max().item<double>();
          // Sums in float32 of products that are larger by the mean.
          const auto computed = 32 * (1 + mean) * unit_roundoff(at::kFloat);
          const int roundings = detail::multiplies_pairs(dtype) ? 2 : 1;
          EXPECT_LE(error / largest, roundings * unit_roundoff(dtype) + computed)
              << dtype << ", mean " << mean;
        };
        check(gradients[0], exact.query_grad);
        check(gradients[1], exact.key_grad);
      }
    }
  }
}

std::string name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return "float16";
  }
}

std::string bounds_table() {
  std::string table =
      "| dtype | u | computed in | output | gradients | length |\n|---|---|---|--:|--:|--:|\n";
  for (const auto& bound : bounds()) {
    table += fmt::format("| {} | 2^{:.0f} | {} | {} | {} | {} |\n", name_of(bound.dtype),
                         std::log2(unit_roundoff(bound.dtype)), name_of(bound.computed_in),
                         bound.output, bound.gradients, bound.length);
  }
  return table;
}

std::string errors_table() {
  std::string table = "| |", line = "|---|";
  for (const auto& bound : bounds()) {
    table += ' ' + name_of(bound.dtype) + " |";
    line += "--:|";
  }
  table += '\n' + line + '\n';
  const auto number = [](double x) { return fmt::format("{:.{}f}", x, x < 99.5 ? 1 : 0); };
  for (const auto& c : numerics_cases()) {
    table += "| " + c.name + " |";
    for (const auto& bound : bounds()) {
      const auto& [output, gradients] = seen().at({c.name, bound.dtype});
      table += ' ' + number(output) + " / " + number(gradients) + " |";
    }
    table += '\n';
  }
  return table;
}

/// The part of a page after a marker and before the end of the table.
struct Place {
  size_t begin, end;
};

Place place_of(const std::string& page, const std::string& marker) {
  const auto begin = page.find(marker) + marker.size();
  return {begin, page.find("\n\n", begin) + 1};
}

std::string read_page() {
  std::ostringstream text;
  text << std::ifstream(HEED_NUMERICS_PAGE).rdbuf();
  return text.str();
}

constexpr auto kBoundsMarker = "<!-- bounds -->\n\n", kErrorsMarker = "<!-- errors -->\n\n";

bool writes_page() { return std::getenv("HEED_NUMERICS_WRITE") != nullptr; }

TEST(NumericsPage, QuotesTheBounds) {
  if (writes_page()) GTEST_SKIP() << "it is about to";
  const auto page = read_page();
  const auto [begin, end] = place_of(page, kBoundsMarker);
  EXPECT_EQ(page.substr(begin, end - begin), bounds_table());
}

/// Brings the page up to date when HEED_NUMERICS_WRITE is set.
class Page : public ::testing::Environment {
 public:
  void TearDown() override {
    if (!writes_page()) return;
    auto page = read_page();
    for (const auto& [marker, table] :
         {std::pair(kBoundsMarker, bounds_table()), std::pair(kErrorsMarker, errors_table())}) {
      const auto [begin, end] = place_of(page, marker);
      page.replace(begin, end - begin, table);
    }
    std::ofstream(HEED_NUMERICS_PAGE) << page;
  }
};

const auto* const kPage = ::testing::AddGlobalTestEnvironment(new Page);

}  // namespace
}  // namespace heed::test
