// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/swiglu_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/capability.h"
#include "cpu/layers/largest_places.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/cpu/kernels.h"

namespace heed::test::of_swiglu_layer {
namespace {

using Tensors = std::vector<at::Tensor>;

struct LayerSizes {
  int64_t rows, width, hidden, out;
};

/// A layer and its rows; weights are about as large as those of a trained layer.
struct LayerCase {
  LayerCase(const LayerSizes& s, const detail::SwiGluForm& form)
      : rows(uniform({s.rows, s.width}, at::kBFloat16)),
        gradient(uniform({s.rows, s.out}, at::kBFloat16)),
        layer{scaled({s.hidden, s.width}), scaled({s.hidden, s.width}), scaled({s.out, s.hidden}),
              form} {}

  static at::Tensor scaled(at::IntArrayRef sizes) {
    return uniform(sizes, at::kBFloat16) * (2 / std::sqrt(static_cast<double>(sizes[1])));
  }

  at::Tensor rows, gradient;
  detail::SwiGluLayer layer;
};

/// Panels [panels, F, 64] as rows [T, F] of float64.
at::Tensor rows_of(const at::Tensor& panels, int64_t count) {
  return panels.transpose(1, 2).flatten(0, 1).narrow(0, 0, count).to(at::kDouble);
}

/// `value`, which is also its gradient's, in place of `exact`, whose rounding it is.
at::Tensor rounded(const at::Tensor& exact, const at::Tensor& value) {
  EXPECT_TRUE(is_close(value, exact.detach(), 0x1p-8 * exact.abs().max().item<double>()));
  return exact + (value - exact).detach();
}

/// In float64: the output and the gradients of rows, gate, up and out. The gate and what it
/// multiplies are as they were rounded: the gradient jumps at a limit, where it is 1.
Tensors expected_of(const LayerCase& in, const detail::SwiGluHidden& kept) {
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.to(at::kDouble).requires_grad_();
  };
  const auto x = leaf(in.rows), w_gate = leaf(in.layer.gate), w_up = leaf(in.layer.up),
             w_out = leaf(in.layer.out);
  const auto rows = in.rows.size(0);
  const auto gate = rounded(x.matmul(w_gate.t()), rows_of(kept.gate, rows));
  const auto up = rounded(x.matmul(w_up.t()), rows_of(kept.up, rows));
  const auto y = gated(gate, up, in.layer.form).matmul(w_out.t());
  auto all = torch::autograd::grad({y}, {x, w_gate, w_up, w_out}, {in.gradient.to(at::kDouble)});
  all.insert(all.begin(), y.detach());
  return all;
}

struct Computed {
  Tensors results;  // the output and the gradients of rows, gate, up and out
  detail::SwiGluHidden kept;
};

Computed computed(const LayerCase& in, const detail::SwiGluWanted& wanted) {
  detail::SwiGluHidden kept;
  const auto y = detail::swiglu_layer(in.rows, in.layer, &kept);
  const auto found = detail::swiglu_layer_backward(in.rows, in.layer, kept, in.gradient, wanted);
  return {{y, found.rows, found.gate, found.up, found.out}, kept};
}

/// Rows, features and outputs that fill no whole panels and vectors; an odd number of rows; more
/// than 256 pairs of each depth.
TEST_P(Kernels, RunSwiGluLayers) {
  torch::manual_seed(moved(61));
  constexpr LayerSizes kSizes[] = {{32, 16, 16, 16},  {33, 50, 34, 50},   {64, 18, 64, 20},
                                   {97, 32, 130, 32}, {191, 520, 66, 38}, {40, 24, 600, 24}};
  detail::SwiGluForm limited;
  limited.beta = 1.7;
  limited.limit = 0.5;
  limited.offset = 1.0;
  for (const auto& sizes : kSizes) {
    for (const auto& form : {detail::SwiGluForm{}, limited}) {
      const LayerCase in(sizes, form);
      const auto& set = detail::instruction_set();
      const bool takes = set.multiplies_bfloat16 && !set.has_tile_registers;
      ASSERT_EQ(detail::takes_swiglu_layer(in.rows, in.layer), takes);
      if (!takes) return;
      const auto [results, kept] = computed(in, {true, true, true, true});
      for (const auto& result : results) EXPECT_EQ(result.scalar_type(), at::kBFloat16);
      // The hidden layer, its gradients and the results are rounded to 2^-9 of them each.
      EXPECT_TRUE(are_alike(results, expected_of(in, kept), 3 * 0x1p-9));
      const auto alone = detail::swiglu_layer(in.rows, in.layer, nullptr);
      EXPECT_TRUE(are_equal({alone}, {results[0]}));
    }
  }
}

TEST_P(Kernels, DifferentiateWhatIsWantedOfSwiGluLayers) {
  torch::manual_seed(moved(62));
  const LayerCase in({70, 40, 36, 40}, {});
  if (!detail::takes_swiglu_layer(in.rows, in.layer)) return;
  const auto all = computed(in, {true, true, true, true}).results;
  for (int wanted = 0; wanted < 16; ++wanted) {
    const bool of[] = {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0, (wanted & 8) != 0};
    const auto some = computed(in, {of[0], of[1], of[2], of[3]}).results;
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(some[i + 1].defined(), of[i]);
      if (!of[i]) continue;
      EXPECT_TRUE(are_equal({some[i + 1]}, {all[i + 1]}));
    }
  }
}

/// Few and many rows, other dtypes and layouts, odd widths and large weights are left to other
/// products.
TEST_P(Kernels, TakeNoOtherSwiGluLayers) {
  const LayerCase in({64, 32, 32, 32}, {});
  const auto takes = [](const at::Tensor& rows, const detail::SwiGluLayer& layer) {
    return detail::takes_swiglu_layer(rows, layer);
  };
  EXPECT_FALSE(takes(in.rows.narrow(0, 0, 31), in.layer));
  EXPECT_FALSE(takes(at::zeros({2049, 32}, at::kBFloat16), in.layer));
  EXPECT_FALSE(takes(in.rows.to(at::kFloat), in.layer));
  EXPECT_FALSE(takes(in.rows.t(), in.layer));
  auto layer = in.layer;
  layer.out = in.layer.out.t();
  EXPECT_FALSE(takes(in.rows, layer));
  layer = LayerCase({64, 31, 32, 32}, {}).layer;
  EXPECT_FALSE(takes(uniform({64, 31}, at::kBFloat16), layer));
  layer = LayerCase({64, 32, 33, 32}, {}).layer;
  EXPECT_FALSE(takes(in.rows, layer));
  layer = LayerCase({64, 32, 4100, 32}, {}).layer;
  EXPECT_FALSE(takes(in.rows, layer));
  layer = in.layer;
  layer.gate = uniform({32 * 32 + 1}, at::kBFloat16).narrow(0, 1, 32 * 32).view({32, 32});
  EXPECT_FALSE(takes(in.rows, layer));
}

TEST(LargestPlaces, AreThoseOfTopk) {
  torch::manual_seed(moved(63));
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>(1, 1), {7, 7}, {64, 8}, {33, 1}, {700, 1}}) {
      const auto rows = at::rand({300, n}, dtype);
      EXPECT_TRUE(are_equal({detail::largest_places(rows, k)}, {std::get<1>(rows.topk(k, -1))}));
      EXPECT_TRUE(are_equal({detail::largest_places(rows.t().contiguous().t(), k)},
                            {std::get<1>(rows.topk(k, -1))}));
    }
  }
  EXPECT_EQ(detail::largest_places(at::zeros({0, 5}), 2).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_EQ(detail::largest_places(at::zeros({0, 500}), 1).sizes(), at::IntArrayRef({0, 1}));
}

TEST(LargestPlaces, TakeTheFirstOfEqualsAndNaN) {
  constexpr auto kNaN = std::numeric_limits<float>::quiet_NaN();
  const auto rows =
      at::tensor({2.0F, 1.0F, 2.0F, 0.0F, 2.0F, 1.0F, kNaN, 3.0F, kNaN, 3.0F}).view({2, 5});
  const auto expected = at::tensor({0, 2, 4, 1, 3, 2}, at::kLong).view({2, 3});
  EXPECT_TRUE(are_equal({detail::largest_places(rows, 3)}, {expected}));
}

}  // namespace
}  // namespace heed::test::of_swiglu_layer
