// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <heed/sampling.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "core/checks.h"
#include "core/to_device.h"
#include "cpu/layers/largest_places.h"
#include "models/penalties.h"

namespace heed {

namespace {

constexpr auto kSample = "sample";
constexpr auto kEverything = std::numeric_limits<double>::infinity();

void check_options(const SamplingOptions& options) {
  HEED_CHECK(std::isfinite(options.temperature()) && options.temperature() >= 0.0,
             "{}: temperature ({}) must be finite and at least 0", kSample, options.temperature());
  detail::check_not_negative(kSample, "top_k", options.top_k());
  HEED_CHECK(options.top_p() >= 0.0 && options.top_p() <= 1.0, "{}: top_p ({}) must be in [0, 1]",
             kSample, options.top_p());
  HEED_CHECK(options.min_p() >= 0.0 && options.min_p() <= 1.0, "{}: min_p ({}) must be in [0, 1]",
             kSample, options.min_p());
}

void check_arguments(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                     at::ArrayRef<at::Generator> generators, at::ArrayRef<TokenHistory> histories) {
  detail::check_defined(kSample, "scores", scores);
  detail::check_rank(kSample, "scores", scores, 2);
  detail::check_floating(kSample, "scores", scores);
  HEED_CHECK(scores.size(1) >= 1, "{}: scores dim 1 (0) must be at least 1; scores {}", kSample,
             detail::shape(scores));
  const auto rows = static_cast<size_t>(scores.size(0));
  HEED_CHECK(options.size() == 1 || options.size() == rows,
             "{}: options size ({}) must equal 1 or scores dim 0 ({})", kSample, options.size(),
             rows);
  HEED_CHECK(histories.empty() || histories.size() == rows,
             "{}: histories size ({}) must equal 0 or scores dim 0 ({})", kSample, histories.size(),
             rows);
  // Where there are no rows, no history is missing.
  const bool has_history = !histories.empty() || rows == 0;
  for (const auto& each : options) {
    check_options(each);
    detail::check_penalties(kSample, each, scores.size(1), has_history);
  }
  HEED_CHECK(generators.size() <= 1 || generators.size() == rows,
             "{}: generators size ({}) must equal 0, 1 or scores dim 0 ({})", kSample,
             generators.size(), rows);
  for (const auto& each : generators) {
    HEED_CHECK(each.defined(), "{}: generators must be defined", kSample);
  }
  // Long texts are read only where an option looks at them.
  if (!std::any_of(options.begin(), options.end(), detail::has_penalties)) return;
  for (size_t row = 0; row < histories.size(); ++row) {
    detail::check_history(kSample, row, histories[row], scores.size(1));
  }
}

/// Checks the largest score of each row [N], which shows NaN anywhere in the row. `name` is what an
/// error calls it.
void check_largest(const at::Tensor& largest, const at::Tensor& scores, const char* name) {
  if (!largest.is_cpu() || largest.numel() == 0) return;
  const auto finite = at::isfinite(largest);
  const auto row = finite.to(at::kByte).argmin().item<int64_t>();  // the first that is not finite
  const auto number = largest[row].item<double>();
  // A NaN may have a sign, which tells nothing.
  HEED_CHECK(finite[row].item<bool>(), "{}: scores row {} {} ({}) must be finite; scores {}",
             kSample, row, name, std::isnan(number) ? std::abs(number) : number,
             detail::shape(scores));
}

/// The values of get(option) as a column: [N, 1], or [1, 1] for one option for all rows.
template <typename Get>
at::Tensor column(at::ArrayRef<SamplingOptions> options, at::Device device, const Get& get) {
  const auto values = at::tensor(c10::fmap(options, get), at::kDouble);
  return detail::to_device(values.unsqueeze(1), device);
}

bool keeps_all(const SamplingOptions& options) {
  return options.top_k() == 0 && options.top_p() == 1.0;
}

/// For each row, the sum of the weights of the tokens that top_k keeps, [N, 1]: of the k
/// likeliest, and of all others whose score equals the lowest of these.
at::Tensor sums_of_kept(const at::Tensor& scores, const at::Tensor& likeliest,
                        const at::Tensor& within, const at::Tensor& sums) {
  const auto border = likeliest.gather(1, within.sum(1, true) - 1);  // the lowest of the k scores
  const auto beyond =
      scores.eq(border).sum(1, true) - likeliest.eq(border).logical_and(within).sum(1, true);
  return sums + beyond * border.exp();
}

/// The lowest of the scores [N, V] that top_k and top_p keep in each row: [N, 1]. The largest of a
/// row is 0.
at::Tensor lowest_kept(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options) {
  const auto device = scores.device();
  const auto vocabulary = scores.size(1);
  const auto count = [&](const SamplingOptions& row) {
    return row.top_k() == 0 ? vocabulary : std::min(row.top_k(), vocabulary);
  };
  int64_t most = 1;
  for (const auto& row : options) most = std::max(most, count(row));
  const auto counts =
      column(options, device, [&](const auto& row) { return static_cast<double>(count(row)); });
  const auto shares = column(options, device, [](const auto& row) {
    return row.top_p() < 1.0 ? row.top_p() : kEverything;
  });
  const auto likeliest = std::get<0>(scores.topk(most, 1));  // [N, K], in descending order
  const auto within = at::arange(most, scores.options()).lt(counts).expand({scores.size(0), most});
  const auto weights = likeliest.exp().masked_fill(within.logical_not(), 0.0);
  // A row's sums do not depend on K, bit for bit: after its own count, only zeros are added.
  const auto sums = weights.cumsum(1);
  const auto whole = sums_of_kept(scores, likeliest, within, sums.narrow(1, most - 1, 1));
  // A token stays while those before it have not reached top_p; the first always does.
  const auto before = sums - weights;
  const auto kept = before.lt(whole * shares).logical_and(within).sum(1, true);
  return likeliest.gather(1, kept.clamp_min(1) - 1);
}

/// Numbers in [0, 1), one for each row: float64 [N, 1].
at::Tensor uniform(int64_t rows, at::ArrayRef<at::Generator> generators, at::Device device) {
  const auto draw = [](int64_t count, const std::optional<at::Generator>& generator,
                       at::Device where) {
    return at::rand({count, 1}, generator, at::device(where).dtype(at::kDouble));
  };
  if (generators.empty()) return draw(rows, std::nullopt, device);
  const auto each = generators.size() == 1 ? rows : 1;
  return at::cat(c10::fmap(generators, [&](const at::Generator& generator) {
    return detail::to_device(draw(each, generator, generator.device()), device);
  }));
}

/// Draws a token for each row of scores [N, V], float64, whose largest is 0. Returns [N].
at::Tensor draw_tokens(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                       at::ArrayRef<at::Generator> generators) {
  const auto device = scores.device();
  auto lowest = column(options, device, [](const auto& row) { return std::log(row.min_p()); });
  if (!std::all_of(options.begin(), options.end(), keeps_all)) {
    lowest = at::maximum(lowest, lowest_kept(scores, options));
  }
  const auto sums = scores.exp().masked_fill(scores.lt(lowest), 0.0).cumsum(1);
  const auto last = scores.size(1) - 1;
  const auto places = uniform(scores.size(0), generators, device) * sums.narrow(1, last, 1);
  // An index is beyond the last token only if scores are not finite, which is checked on the CPU
  // alone.
  return at::searchsorted(sums, places, /*out_int32=*/false, /*right=*/true)
      .squeeze(1)
      .clamp_max(last);
}

}  // namespace

at::Tensor sample(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                  at::ArrayRef<at::Generator> generators) {
  return sample(scores, options, generators, at::ArrayRef<TokenHistory>());
}

at::Tensor sample(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                  at::ArrayRef<at::Generator> generators, at::ArrayRef<TokenHistory> histories) {
  check_arguments(scores, options, generators, histories);
  const at::NoGradGuard no_grad;
  const bool changes = std::any_of(options.begin(), options.end(), detail::has_penalties);
  const auto penalized = changes ? detail::penalize(scores, options, histories) : scores;
  const auto likeliest = detail::largest_places(penalized, 1);
  const auto largest = penalized.gather(1, likeliest);
  check_largest(largest.squeeze(1), scores, changes ? "maximum with penalties" : "maximum");
  const auto is_greedy = [](const SamplingOptions& row) { return row.temperature() == 0.0; };
  if (std::all_of(options.begin(), options.end(), is_greedy)) return likeliest.squeeze(1);
  const auto temperatures =
      column(options, scores.device(), [](const auto& row) { return row.temperature(); });
  const auto greedy = temperatures.eq(0.0);
  // The largest score is subtracted first, so that a temperature near 0 overflows to probabilities
  // of 0.
  const auto scaled = (penalized.to(at::kDouble) - largest) / temperatures.masked_fill(greedy, 1.0);
  return at::where(greedy.squeeze(1), likeliest.squeeze(1),
                   draw_tokens(scaled, options, generators));
}

}  // namespace heed
