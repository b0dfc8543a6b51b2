// SPDX-License-Identifier: BSD-3-Clause
#include <heed/relative_position_bias.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "core/checks.h"
#include "modules/layers/parameters.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kRelativePositionBias = "RelativePositionBias";
constexpr int64_t kClassEntries = 3;

/// The bucket of each distance, which is key minus query: int64, shaped as `distance`.
at::Tensor buckets_of(const at::Tensor& distance, const RelativePositionBiasOptions& options) {
  const auto count = options.bidirectional() ? options.buckets() / 2 : options.buckets();
  const auto first =
      options.bidirectional() ? distance.gt(0).to(at::kLong) * count : distance.mul(0);
  const auto apart = options.bidirectional() ? distance.abs() : distance.neg().clamp_min(0);
  const auto exact = count / 2;  // as many distances have a bucket each
  // In float32, as in T5's code, so that distances next to a border fall into the same bucket.
  const auto growth =
      (apart.clamp_min(1).to(at::kFloat) / static_cast<double>(exact)).log() /
      std::log(static_cast<double>(options.max_distance()) / static_cast<double>(exact));
  const auto coarse =
      (exact + (growth * static_cast<double>(count - exact)).to(at::kLong)).clamp_max(count - 1);
  return first + at::where(apart.lt(exact), apart, coarse);
}

/// r of the tokens of a window of an image: y (2 width - 1) + x, int64 [height * width].
at::Tensor image_positions(at::IntArrayRef window, const at::Tensor& like) {
  const auto numbers = [&](int64_t count) {
    return at::arange(count, like.options().dtype(at::kLong).requires_grad(false));
  };
  return (numbers(window[0]).unsqueeze(1) * (2 * window[1] - 1) + numbers(window[1])).flatten();
}

}  // namespace

RelativePositionBiasImpl::RelativePositionBiasImpl(const RelativePositionBiasOptions& options)
    : options(options) {
  reset();
}

void RelativePositionBiasImpl::check_options() const {
  const auto* name = kRelativePositionBias;
  detail::check_positive(name, "head_num", options.head_num());
  const auto& window = options.image_window();
  if (!window.empty()) {
    HEED_CHECK(window.size() == 2, "{}: image_window ({} numbers) must be its height and width",
               name, window.size());
    detail::check_positive(name, "image_window[0]", window[0]);
    detail::check_positive(name, "image_window[1]", window[1]);
    return;
  }
  HEED_CHECK(!options.class_token(), "{}: class_token needs image_window", name);
  const int64_t directions = options.bidirectional() ? 2 : 1;
  HEED_CHECK(options.buckets() >= 2 * directions && options.buckets() % directions == 0,
             "{}: buckets ({}) must be at least {}{}", name, options.buckets(), 2 * directions,
             directions == 2 ? " and even" : "");
  const auto exact = options.buckets() / directions / 2;
  HEED_CHECK(options.max_distance() > exact,
             "{}: max_distance ({}) must be above the number of distances that have a bucket each "
             "({})",
             name, options.max_distance(), exact);
}

void RelativePositionBiasImpl::reset() {
  check_options();
  const auto& window = options.image_window();
  auto entries = options.buckets();
  if (!window.empty()) {
    entries =
        (2 * window[0] - 1) * (2 * window[1] - 1) + (options.class_token() ? kClassEntries : 0);
  }
  weight = register_parameter("weight", detail::empty_parameter({entries, options.head_num()}));
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void RelativePositionBiasImpl::reset_parameters() { detail::draw_initial(weight); }

void RelativePositionBiasImpl::pretty_print(std::ostream& stream) const {
  const RelativePositionBiasOptions defaults(options.head_num());
  detail::ModulePrinter printer(stream, kRelativePositionBias);
  printer.show("head_num", options.head_num());
  const auto& window = options.image_window();
  if (!window.empty()) {
    printer.show("image_window", fmt::format("[{}, {}]", window[0], window[1]));
    if (options.class_token()) printer.show("class_token", true);
    return;
  }
  printer.show("buckets", options.buckets()).show("max_distance", options.max_distance());
  if (!options.bidirectional()) printer.show("bidirectional", false);
}

RelativeBias RelativePositionBiasImpl::relative() const {
  HEED_CHECK(!options.class_token(),
             "{}: relative must be called without class_token, which has no distance; call "
             "forward(L, S) and pass its result as bias",
             kRelativePositionBias);
  const auto& window = options.image_window();
  // The tables of Swin have entries for query minus key.
  if (!window.empty()) return {weight.flip(0).t(), image_positions(window, weight)};
  const auto reach = options.max_distance();
  const auto distance =
      at::arange(-reach, reach + 1, weight.options().dtype(at::kLong).requires_grad(false));
  return {weight.index_select(0, buckets_of(distance, options)).t(), std::nullopt};
}

at::Tensor RelativePositionBiasImpl::forward(int64_t query_length, int64_t key_length) const {
  const auto* name = kRelativePositionBias;
  detail::check_not_negative(name, "query_length", query_length);
  detail::check_not_negative(name, "key_length", key_length);
  const auto numbers = weight.options().dtype(at::kLong).requires_grad(false);
  const auto& window = options.image_window();
  at::Tensor entry;  // int64 [L, S]
  if (window.empty()) {
    const auto queries = at::arange(key_length - query_length, key_length, numbers).unsqueeze(1);
    entry = buckets_of(at::arange(key_length, numbers) - queries, options);
  } else {
    const auto tokens = window[0] * window[1] + (options.class_token() ? 1 : 0);
    HEED_CHECK(query_length == tokens && key_length == tokens,
               "{}: query_length ({}) and key_length ({}) must be the tokens of the window ({})",
               name, query_length, key_length, tokens);
    const auto positions = image_positions(window, weight);
    const auto middle = (2 * window[0] - 1) * (2 * window[1] - 1) / 2;
    entry = positions.unsqueeze(1) - positions + middle;
    if (options.class_token()) {
      const auto last = weight.size(0);
      const auto all = at::full({tokens, tokens}, last - kClassEntries, numbers);
      all.narrow(0, 1, tokens - 1).narrow(1, 1, tokens - 1).copy_(entry);
      all.narrow(0, 1, tokens - 1).select(1, 0).fill_(last - 2);
      all[0][0] = last - 1;
      entry = all;
    }
  }
  return weight.index_select(0, entry.flatten())
      .t()
      .view({1, options.head_num(), query_length, key_length});
}

}  // namespace heed
