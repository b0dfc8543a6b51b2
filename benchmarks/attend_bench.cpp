// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <heed/attend.h>

#include <array>

#include "rows.h"
#include "support/limits.h"

namespace heed::bench {

namespace {

/// Ours at most 1.03 times as long.
constexpr double kParity = 1.0 / 1.03;

struct AttendShape {
  int64_t B, H, L, D;
};

struct AttendInputs {
  at::Tensor query, key, value;
  AttendOptions options;
  at::Tensor left, right;  // of a product of as many operations; undefined where none is measured
};

/// How a row departs from plain attention.
struct Variant {
  const char* name;
  std::function<AttendOptions(const AttendShape&)> options;
  int64_t heads_per_group = 1;
  at::ScalarType dtype = at::kFloat;
  /// The share of a matrix product's speed to reach at head_dim 64 and 128; 0: not measured.
  std::array<double, 2> of_product = {0.0, 0.0};
};

/// Three of four keys may be attended, the first always.
at::Tensor random_mask(at::IntArrayRef shape) {
  auto mask = at::rand(shape) < 0.75;
  mask.select(-1, 0).fill_(true);
  return mask;
}

std::vector<Variant> variants() {
  const auto none = [](const AttendShape&) { return AttendOptions(); };
  const auto causal = [](const AttendShape&) { return AttendOptions().causal(true); };
  const auto mask_2d = [](const AttendShape& s) {
    return AttendOptions().mask(random_mask({s.L, s.L}));
  };
  const auto mask_4d = [](const AttendShape& s) {
    return AttendOptions().mask(random_mask({s.B, 1, s.L, s.L}));
  };
  const auto bias = [](const AttendShape& s) {
    return AttendOptions().bias(at::randn({1, s.H, s.L, s.L}));
  };
  return {{"plain", none, 1, at::kFloat, {0.85, 0.92}},
          {"causal", causal},
          {"mask_2d", mask_2d},
          {"mask_4d", mask_4d},
          {"bias", bias},
          {"gqa", none, /*heads_per_group=*/4},
          {"bf16", none, 1, at::kBFloat16, {0.75, 0.88}},
          {"f64", none, 1, at::kDouble}};
}

AttendInputs make_inputs(const AttendShape& s, const Variant& variant) {
  const auto groups = s.H / variant.heads_per_group;
  return {at::randn({s.B, s.H, s.L, s.D}).to(variant.dtype),
          at::randn({s.B, groups, s.L, s.D}).to(variant.dtype),
          at::randn({s.B, groups, s.L, s.D}).to(variant.dtype),
          variant.options(s),
          {},
          {}};
}

at::Tensor run_heed(AttendInputs& in) { return attend(in.query, in.key, in.value, in.options); }

at::Tensor run_sdpa(AttendInputs& in) {
  const auto& mask = in.options.mask() ? in.options.mask() : in.options.bias();
  return at::scaled_dot_product_attention(in.query, in.key, in.value, mask, /*dropout_p=*/0.0,
                                          in.options.causal(), /*scale=*/std::nullopt,
                                          /*enable_gqa=*/in.query.size(1) != in.key.size(1));
}

double attend_flops(const AttendShape& s) {
  return 4.0 * static_cast<double>(s.B * s.H * s.L * s.L * s.D);
}

/// Beside the product of two matrices with as many operations; `target` is of its speed.
void add_beside_product(Rows& rows, const Variant& variant, const AttendShape& s, double target) {
  TORCH_INTERNAL_ASSERT(2 * s.B * s.H * s.D == s.L);
  const auto make = [s, variant] {
    auto in = make_inputs(s, variant);
    in.left = at::randn({s.L, s.L}).to(variant.dtype);
    in.right = at::randn({s.L, s.L}).to(variant.dtype);
    return in;
  };
  const auto multiply = [](AttendInputs& in) { return at::matmul(in.left, in.right); };
  const auto by_onednn = [](AttendInputs& in) { return onednn_linear(in.left, in.right); };
  RowTraits traits;
  traits.flops = attend_flops(s);
  add_row<AttendInputs>(
      rows, fmt::format("attend/{}/{}x{}x{}x{}", variant.name, s.B, s.H, s.L, s.D), traits, make,
      {{"heed", run_heed},
       {"SDPA", run_sdpa, kParity},
       {"matmul", multiply, target, no_result},
       {"oneDNN product", by_onednn, target, no_result, /*may_refuse=*/true}});
}

}  // namespace

void add_attend_rows(Rows& rows) {
  constexpr std::array<AttendShape, 6> kShapes{{{1, 8, 50, 16},
                                                {1, 8, 128, 64},
                                                {4, 8, 256, 64},
                                                {1, 8, 512, 64},
                                                {2, 8, 1024, 64},
                                                {1, 32, 2048, 64}}};
  for (const auto& variant : variants()) {
    for (const auto& s : kShapes) {
      RowTraits traits;
      traits.flops = attend_flops(s);
      if (variant.options({1, 1, 1, 1}).causal()) traits.flops /= 2;
      add_row<AttendInputs>(rows,
                            fmt::format("attend/{}/{}x{}x{}x{}", variant.name, s.B, s.H, s.L, s.D),
                            traits, [s, variant] { return make_inputs(s, variant); },
                            {{"heed", run_heed}, {"SDPA", run_sdpa, kParity}});
    }
    const auto [narrow, wide] = variant.of_product;
    if (narrow > 0.0) add_beside_product(rows, variant, {1, 16, 2048, 64}, narrow);
    if (wide > 0.0) add_beside_product(rows, variant, {1, 8, 2048, 128}, wide);
  }
}

}  // namespace heed::bench
