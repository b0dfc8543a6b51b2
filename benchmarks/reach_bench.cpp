// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/rand.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <heed/relative_position_bias.h>

#include "attend_calls.h"
#include "rows.h"
#include "support/limits.h"

// Options that say which keys a query sees, or what distances add to scores, beside a mask or bias
// of L x S that says the same.

namespace heed::bench {

namespace {

/// All contestants of a row have the same queries, keys and values.
struct ReachInputs {
  AttendCall ours, dense, less;
};

at::Tensor reach_heed(ReachInputs& in) { return run_call(in.ours); }
at::Tensor reach_dense(ReachInputs& in) { return run_call(in.dense); }
at::Tensor reach_less(ReachInputs& in) { return run_call(in.less); }

/// Options beside those that say the same by a mask.
struct Reach {
  std::string name;
  CallShape shape;
  std::function<AttendOptions()> ours, by_mask;
};

void add_reach_row(Rows& rows, const Reach& reach, bool training) {
  const auto make = [=] {
    ReachInputs in{make_call(reach.shape, training), {}, {}};
    in.dense = in.ours;
    in.ours.options = reach.ours();
    in.dense.options = reach.by_mask();
    return in;
  };
  RowTraits traits;
  traits.training = training;
  add_row<ReachInputs>(rows, call_name("reach/" + reach.name, reach.shape, training), traits, make,
                       {{"heed", reach_heed}, {"the same as a mask", reach_dense, 1.0}});
}

constexpr int64_t kLong = 8192;

AttendOptions two_sides(int64_t left, int64_t right) {
  return AttendOptions().left_window(left).right_window(right);
}

/// bool [L, L].
at::Tensor two_sided_mask(int64_t left, int64_t right) {
  const auto ahead = at::arange(kLong) - at::arange(kLong).unsqueeze(1);
  return ahead.ge(-left).logical_and(ahead.le(right));
}

/// 16 tokens, evenly apart.
at::Tensor few_tokens() { return at::arange(kLong).remainder(kLong / 16).eq(0); }

at::Tensor drawn_lengths(int64_t most) {
  return at::linspace(64, static_cast<double>(most), 16).to(at::kLong);
}

/// Masks of 16 windows, for 4 images.
at::Tensor masks_of_windows() { return at::rand({16, 1, 49, 49}).gt(0.3); }

std::vector<Reach> reaches() {
  const CallShape sequence{1, 8, 8, kLong, kLong, 64}, batch{16, 8, 8, 1024, 1024, 64};
  const CallShape chunk{2, 8, 8, 512, 2048, 64}, images{64, 4, 4, 49, 49, 32};
  const auto windows = masks_of_windows();
  return {{"left256_right128", sequence, [] { return two_sides(256, 128); },
           [] { return AttendOptions().mask(two_sided_mask(256, 128)); }},
          // Longformer's: 512 keys on both sides together.
          {"window512_global16", sequence,
           [] { return two_sides(256, 256).global_tokens(few_tokens()); },
           [] {
             const auto global = few_tokens();
             const auto seen = two_sided_mask(256, 256).logical_or(global);
             return AttendOptions().mask(seen.logical_or(global.unsqueeze(1)));
           }},
          {"key_lengths64to1024", batch,
           [] { return AttendOptions().key_lengths(drawn_lengths(1024)); },
           [] { return AttendOptions().mask(padding_mask(drawn_lengths(1024), 1024)); }},
          {"top_left", chunk, [] { return AttendOptions().causal(true).top_left(true); },
           [] { return AttendOptions().mask(causal_mask(512, 2048, /*offset=*/0)); }},
          {"swin_cycled", images,
           [=] { return AttendOptions().mask(windows).mask_batch(MaskBatch::cycled); },
           [=] {
             return AttendOptions().mask(windows.repeat({4, 1, 1, 1}));
           }}};
}

/// A relative bias beside the same as a bias, and beside none.
void add_relative_row(Rows& rows, const std::string& name, const CallShape& s,
                      const RelativePositionBiasOptions& options, bool training) {
  const auto make = [=] {
    RelativePositionBias bias(options);
    const auto leaf = [&](const at::Tensor& learned) {
      return learned.detach().contiguous().requires_grad_(training);
    };
    ReachInputs in{make_call(s, training), {}, {}};
    in.dense = in.less = in.ours;
    const auto [table, places] = bias->relative();
    in.ours.learned = leaf(table);
    in.ours.options.relative_bias(in.ours.learned).relative_positions(places);
    in.dense.learned = leaf(bias(s.L, s.S));
    in.dense.options.bias(in.dense.learned);
    return in;
  };
  RowTraits traits;
  traits.training = training;
  add_row<ReachInputs>(rows, call_name("relative_bias/" + name, s, training), traits, make,
                       {{"heed", reach_heed},
                        {"the same as a bias", reach_dense, 1.0},
                        {"no bias", reach_less, 0.85, no_result}});
}

}  // namespace

void add_reach_rows(Rows& rows) {
  for (const bool training : {false, true}) {
    for (const auto& reach : reaches()) add_reach_row(rows, reach, training);
    add_relative_row(rows, "t5", {4, 8, 8, 512, 512, 64}, /*head_num=*/8, training);
    add_relative_row(rows, "swin", {64, 4, 4, 49, 49, 32},
                     RelativePositionBiasOptions(4).image_window({7, 7}), training);
  }
}

}  // namespace heed::bench
