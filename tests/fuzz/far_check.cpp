// SPDX-License-Identifier: BSD-3-Clause
// Keys or queries by the million, which take no memory: they are one and the same, and what a query
// gets follows from how far it stands from the keys that it sees.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attend_verdict.h"
#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

constexpr int64_t kLengths[] = {1000, 70'001, 1'000'003, (1 << 24) + 3};

/// Sizes that take a few milliseconds: millions of keys for few queries, in a window where float32
/// would not tell them apart.
Case sized(Case c) {
  const auto length = kLengths[static_cast<size_t>(c.far) % 4];
  c.B = 1;
  c.G = 1;
  c.H = 1 + c.H % 2;
  c.D = 1 + c.D % 4;
  c.Dv = 1 + c.Dv % 4;
  c.defect = kNoDefect;
  c.scale %= 5;
  c.softcap = c.left = c.right = c.top_left = 0;
  c.slopes_fill = c.sinks_fill = c.mean = 0;
  c.window = length > 1'000'000 ? 1 + c.window % 5 : c.window % 6;
  if (c.cross != 0) {
    c.L = std::min<int64_t>(length, 70'001);
    c.S = 1 + c.S % 3;
  } else {
    c.L = 1 + c.L % 3;
    c.S = length;
  }
  return c;
}

/// Positive and not too small: the keys that count are near.
at::Tensor make_slopes(const Case& c) { return test::uniform({c.H}, at::kFloat).abs() * 0.5 + 0.1; }

/// The log of the sum of exp(-slope * |p - j|) over the keys that query i sees; -inf if none.
double log_sum(const Case& c, double slope, int64_t i) {
  const auto p = i + c.S - c.L;
  const auto window = std::min(window_of(c).value_or(c.L + c.S), c.L + c.S);
  const auto first = std::max<int64_t>(p - window + 1, 0);
  const auto last = std::min(c.causal != 0 ? p + 1 : p + window, c.S);
  if (first >= last) return -std::numeric_limits<double>::infinity();
  if (slope == 0.0) return std::log(static_cast<double>(last - first));
  const auto nearest = std::clamp(p, first, last - 1);
  constexpr int64_t kThatCount = 1000;  // exp(-0.1 * 1000) is nothing
  double sum = 0.0;
  for (auto j = std::max(first, nearest - kThatCount); j < std::min(last, nearest + kThatCount);
       ++j) {
    sum += std::exp(-slope * static_cast<double>(std::abs(p - j) - std::abs(p - nearest)));
  }
  return std::log(sum) - slope * static_cast<double>(std::abs(p - nearest));
}

/// The shares that are left to the value beside a sink: [H, L, 1].
at::Tensor shares(const Case& c, const at::Tensor& scores, const std::optional<at::Tensor>& slopes,
                  const std::optional<at::Tensor>& sinks) {
  const auto result = at::empty({c.H, c.L, 1}, at::kDouble);
  auto* share = result.data_ptr<double>();
  for (int64_t h = 0; h < c.H; ++h) {
    const auto slope = slopes ? (*slopes)[h].item<double>() : 0.0;
    const auto sink = sinks ? (*sinks)[h].item<double>() : 0.0;
    const auto* const score = scores[h].const_data_ptr<double>();
    for (int64_t i = 0; i < c.L; ++i) {
      const auto sum = log_sum(c, slope, i) + score[i];
      *share++ = std::isinf(sum) ? 0.0 : sinks ? 1.0 / (1.0 + std::exp(sink - sum)) : 1.0;
    }
  }
  return result;
}

}  // namespace

void check_far(const Case& given) {
  const auto c = sized(given);
  const auto dtype = dtype_of(given.dtype % 4);
  const auto query = test::uniform({1, c.H, 1, c.D}, dtype).expand({1, c.H, c.L, c.D});
  const auto key = test::uniform({1, 1, 1, c.D}, dtype).expand({1, 1, c.S, c.D});
  const auto value = test::uniform({1, 1, 1, c.Dv}, dtype).expand({1, 1, c.S, c.Dv});
  AttendOptions options;
  set_score_options(c, options);
  options.dropout(0.0);
  if (c.alibi != 0) options.alibi_slopes(make_slopes(c));
  if (c.sinks != 0) options.sinks(test::uniform({c.H}, at::kFloat));
  const at::NoGradGuard no_grad;
  const auto output = outcome(true, {}, [&] { return attend(query, key, value, options); });

  const auto scale = options.scale().value_or(1.0 / std::sqrt(static_cast<double>(c.D)));
  const auto scores =
      ((query[0].to(at::kDouble) * key[0].narrow(1, 0, 1).to(at::kDouble)).sum(-1) * scale)
          .contiguous();
  const auto expected = value[0].narrow(1, 0, 1).to(at::kDouble) *
                        shares(c, scores, options.alibi_slopes(), options.sinks());
  // Sums over many keys, a tile of 16 or more after another, round once each; LibTorch's, which are
  // taken in float64 and without kernels, a vector of 4 or more.
  const auto tile = dtype == at::kDouble || !detail::has_kernels() ? 4.0 : 16.0;
  const auto tiles = static_cast<double>(std::min(c.S, window_of(c).value_or(c.S))) / tile;
  const auto computed_in = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto allowed = tolerance(dtype, scores.abs().max().item<double>() + 64.0) +
                       2.0 * tiles * test::unit_roundoff(computed_in);
  expect(test::is_close((*output)[0], expected, allowed), "output");
}

}  // namespace heed::fuzz
