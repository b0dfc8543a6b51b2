// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <heed/rotary_embedding.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/random_state.h"
#include "cpu/isa/matrix.h"
#include "cpu/isa/scores.h"
#include "cpu/layers/drop_out.h"
#include "cpu/layers/expert_rows.h"
#include "cpu/layers/rms_norm.h"
#include "cpu/layers/rotate.h"
#include "cpu/layers/swiglu.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/cpu/kernels.h"

namespace heed::test {
namespace {

INSTANTIATE_TEST_SUITE_P(InstructionSets, Kernels, ::testing::ValuesIn(instruction_set_routes()),
                         [](const auto& info) { return info.param.name; });

/// Every 16-bit number to float32, and back.
TEST_P(Kernels, ConvertHalfPrecisionAsLibTorchDoes) {
  constexpr int64_t kCount = 1 << 16;
  for (const auto& [dtype, type] : {std::pair(at::kHalf, detail::ElementType::float16),
                                    std::pair(at::kBFloat16, detail::ElementType::bfloat16)}) {
    const auto bits = at::arange(kCount, at::kInt).to(at::kShort).view(dtype);
    const auto expected = bits.to(at::kFloat);
    auto widened = at::empty({kCount}, at::kFloat);
    const auto& kernels = detail::instruction_set().matrix.of_float;
    kernels.pack({bits.data_ptr(), type, 1, kCount, kCount, 1}, widened.data_ptr<float>(), kCount);
    EXPECT_TRUE(at::equal(widened.nan_to_num(0.5), expected.nan_to_num(0.5)));
    EXPECT_TRUE(at::equal(widened.isnan(), expected.isnan()));

    // Neighbors of the numbers and of the midpoints between them.
    auto numbers = at::cat({expected, expected * 1.00048828125, expected * 1.0009765625,
                            expected * (1 + 0x1p-9), expected * (1 + 0x1p-8),
                            at::randn({kCount}) * 1e-6, at::randn({kCount}) * 1e5});
    auto narrowed = at::empty(numbers.sizes(), dtype);
    kernels.unpack(numbers.data_ptr<float>(), numbers.numel(), 1, nullptr,
                   {narrowed.data_ptr(), type, 1, numbers.numel(), numbers.numel(), 1});
    const auto rounded = numbers.to(dtype);
    EXPECT_TRUE(at::equal(narrowed.isnan(), rounded.isnan()));
    EXPECT_TRUE(at::equal(narrowed.nan_to_num(0.5), rounded.nan_to_num(0.5)));
  }
}

constexpr at::ScalarType kElementTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

/// Pairs as complex numbers, times those of the angles, in float64.
at::Tensor turned(const at::Tensor& x, const RotaryAngles& angles, RotaryPairing pairing) {
  const auto pairs = angles.cos.size(3);
  const auto wide = x.to(at::kDouble);
  const bool interleaved = pairing == RotaryPairing::interleaved;
  const auto turning = wide.narrow(3, 0, 2 * pairs);
  const auto pair = interleaved ? turning.unflatten(3, {pairs, 2})
                                : turning.unflatten(3, {2, pairs}).transpose(3, 4);
  const auto product = at::view_as_real(at::view_as_complex(pair.contiguous()) *
                                        at::complex(angles.cos, angles.sin).to(at::kComplexDouble));
  const auto heads = interleaved ? product.flatten(3) : product.transpose(3, 4).flatten(3);
  return at::cat({heads, wide.narrow(3, 2 * pairs, x.size(3) - 2 * pairs)}, 3);
}

/// Pairs that fill no whole vectors, elements beyond them, heads in the memory of a projection, the
/// same positions for all sequences and their own; the gradient turns back.
TEST_P(Kernels, RotatePairs) {
  torch::manual_seed(moved(1));
  for (const auto dtype : kElementTypes) {
    const auto precise = dtype == at::kDouble ? at::kDouble : at::kFloat;
    for (const auto pairing : {RotaryPairing::half_split, RotaryPairing::interleaved}) {
      // Pairs for whole vectors, for 16 bytes, and for neither.
      for (const auto& [batch, pairs] : {std::pair<int64_t, int64_t>(1, 19), {2, 19}, {1, 14}}) {
        const auto angle = uniform({batch, 1, 5, pairs}, precise) * 3;
        const RotaryAngles angles{angle.cos(), angle.sin()};
        const bool interleaved = pairing == RotaryPairing::interleaved;
        const auto x = uniform({2, 5, 3, 41}, dtype).transpose(1, 2).requires_grad_();
        // Two products and a sum of values up to 1, rounded to the dtype once more.
        const auto tolerance = 4 * unit_roundoff(precise) + 2 * unit_roundoff(dtype);
        const auto output = detail::rotate(x, {angles.cos, angles.sin, interleaved});
        EXPECT_TRUE(is_close(output, turned(x, angles, pairing), tolerance));
        const auto direction = uniform(output.sizes(), dtype).requires_grad_();
        const auto gradient = torch::autograd::grad({output}, {x}, {direction}, /*retain_graph=*/{},
                                                    /*create_graph=*/true)[0];
        const RotaryAngles back{angles.cos, -angles.sin};
        EXPECT_TRUE(is_close(gradient, turned(direction, back, pairing), tolerance));
        const auto second = torch::autograd::grad({gradient}, {direction}, {x.detach()})[0];
        EXPECT_TRUE(is_close(second, output, tolerance));
      }
    }
  }
}

at::Tensor rms_normed(const at::Tensor& x, const at::Tensor& weight) {
  return x / (x.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() * weight;
}

/// Rows that fill no whole vectors, enough of them for several tasks; first and second derivatives
/// against those of the definition in float64.
TEST_P(Kernels, NormalizeRows) {
  torch::manual_seed(moved(2));
  // Half types also with a weight in float32.
  std::vector<std::pair<at::ScalarType, at::ScalarType>> pairs;
  for (const auto dtype : kElementTypes) pairs.emplace_back(dtype, dtype);
  pairs.emplace_back(at::kBFloat16, at::kFloat);
  pairs.emplace_back(at::kHalf, at::kFloat);
  for (const auto& [dtype, weight_dtype] : pairs) {
    const auto x = uniform({4, 300, 37}, dtype).transpose(0, 1).requires_grad_();
    const auto weight = (uniform({37}, weight_dtype) + 2).detach().requires_grad_();
    const auto direction = uniform(x.sizes(), dtype);
    const auto derivatives = [&](const auto& function, at::ScalarType type,
                                 at::ScalarType weight_type) {
      const auto from = x.detach().to(type).requires_grad_();
      const auto by = weight.detach().to(weight_type).requires_grad_();
      const auto output = function(from, by);
      auto result = torch::autograd::grad({output}, {from, by}, {direction.to(type)},
                                          /*retain_graph=*/true);
      const auto again = torch::autograd::grad({output}, {from, by}, {direction.to(type)},
                                               /*retain_graph=*/true, /*create_graph=*/true);
      const auto second = torch::autograd::grad({again[0]}, {from, by}, {direction.to(type)});
      result.insert(result.end(), second.begin(), second.end());
      result.push_back(output);
      return result;
    };
    const auto actual =
        derivatives([](const at::Tensor& from,
                       const at::Tensor& by) { return detail::rms_norm(from, by, 1e-3); },
                    dtype, weight_dtype);
    EXPECT_EQ(actual.back().scalar_type(), dtype);
    EXPECT_EQ(actual[1].scalar_type(), weight_dtype);
    const auto expected = derivatives(rms_normed, at::kDouble, at::kDouble);
    // A few roundoffs of a row's values, which are below 10; sums over 1200 rows of such errors.
    EXPECT_TRUE(are_alike(actual, expected, 16 * unit_roundoff(dtype)))
        << c10::toString(dtype) << ", " << c10::toString(weight_dtype);
  }
}

/// The usual one, one with a limit that many elements are beyond, and each number by itself.
std::vector<detail::SwiGluForm> forms() {
  std::vector<detail::SwiGluForm> all(5);
  all[1].limit = all[2].limit = 0.75;
  all[1].beta = all[3].beta = 1.702;
  all[1].offset = all[4].offset = 1.0;
  return all;
}

/// Elements that fill no whole vectors, enough of them for several tasks, in any layout; first and
/// second derivatives against those of the definition in float64.
TEST_P(Kernels, GateElements) {
  torch::manual_seed(moved(3));
  for (const auto dtype : kElementTypes) {
    const auto gate = uniform({37, 3, 301}, dtype).mul(20).transpose(0, 1);
    const auto up = uniform({3, 37, 602}, dtype).slice(2, 0, {}, 2);
    const auto direction = uniform({301, 37, 3}, dtype).permute({2, 1, 0});
    const auto derivatives = [&](const auto& function, at::ScalarType type) {
      const auto g = gate.detach().to(type).requires_grad_();
      const auto u = up.detach().to(type).requires_grad_();
      const auto of_output = direction.to(type).detach().requires_grad_();
      const auto output = function(g, u);
      auto result = torch::autograd::grad({output}, {g, u}, {of_output}, /*retain_graph=*/true);
      const auto again = torch::autograd::grad({output}, {g, u}, {of_output}, /*retain_graph=*/true,
                                               /*create_graph=*/true);
      const auto second = torch::autograd::grad(again, {g, u, of_output}, {u.detach(), g.detach()});
      result.insert(result.end(), second.begin(), second.end());
      result.push_back(output);
      return result;
    };
    for (const auto& form : forms()) {
      const auto by = [&](const auto& function) {
        return [&, function](const auto& g, const auto& u) { return function(g, u, form); };
      };
      const auto actual = derivatives(by(detail::swiglu), dtype);
      const auto expected = derivatives(by(gated), at::kDouble);
      const auto precise = dtype == at::kDouble ? at::kDouble : at::kFloat;
      for (const auto& tensor : actual) EXPECT_EQ(tensor.scalar_type(), dtype);
      // 1 - sigmoid is rounded at 1, and multiplied by up to 20.
      const double bound = 2 * unit_roundoff(dtype) + 32 * unit_roundoff(precise);
      EXPECT_TRUE(are_alike(actual, expected, bound))
          << c10::toString(dtype) << ", " << form.beta << ", " << form.limit << ", " << form.offset;
    }
  }
}

TEST_P(Kernels, GateElementsOfAnySize) {
  const auto infinity = std::numeric_limits<double>::infinity();
  for (const auto dtype : kElementTypes) {
    const auto some = at::tensor({-infinity, -2e4, -100.0, -0.0, 0.0, 100.0, 2e4, infinity, NAN});
    const auto gate = some.to(dtype).repeat({5}).requires_grad_();  // in vectors and beyond
    const auto up = at::ones_like(gate).requires_grad_();
    const auto output = detail::swiglu(gate, up);
    const auto gradients = torch::autograd::grad({output}, {gate, up}, {at::ones_like(output)});
    const auto expected = at::silu(gate);
    EXPECT_TRUE(at::allclose(output, expected, 1e-6, 1e-30, /*equal_nan=*/true));
    EXPECT_TRUE(at::allclose(gradients[1], expected, 1e-6, 1e-30, /*equal_nan=*/true));
    const auto finite = gate.detach().masked_select(gate.isfinite());
    const auto slope = (finite.ge(0).to(dtype) + finite.gt(0).to(dtype)) / 2;
    EXPECT_TRUE(at::allclose(gradients[0].masked_select(gate.isfinite()), slope, 0.0, 1e-30));
  }
}

/// At the limit there are gradients; beyond it there are none, and NaN stays.
TEST_P(Kernels, LimitElementsOfAnySize) {
  const auto infinity = std::numeric_limits<double>::infinity();
  detail::SwiGluForm form;
  form.limit = 2.0;
  form.offset = 1.0;
  for (const auto dtype : kElementTypes) {
    const auto some = at::tensor({-infinity, -3.0, -2.0, 0.0, 2.0, 3.0, infinity, NAN});
    const auto up = some.to(dtype).repeat({5}).requires_grad_();  // in vectors and beyond
    const auto gate = at::ones_like(up).requires_grad_();
    const auto swiglu = [&](const at::Tensor& g, const at::Tensor& u) {
      const auto output = detail::swiglu(g, u, form);
      auto result = torch::autograd::grad({output}, {g, u}, {at::ones_like(output)});
      result.push_back(output);
      return result;
    };
    const auto of_up = swiglu(gate, up), of_gate = swiglu(up, gate);
    const auto is_within = (up.abs() <= 2.0).to(dtype), is_below = (up <= 2.0).to(dtype);
    const auto finite = up.isfinite();
    const double one = 1.0 / (1.0 + std::exp(-1.0)), bound = 4 * unit_roundoff(dtype);
    EXPECT_TRUE(at::allclose(of_up[2], one * (up.clamp(-2.0, 2.0) + 1.0), bound, 1e-30,
                             /*equal_nan=*/true));
    EXPECT_TRUE(at::allclose(of_up[1].masked_select(finite),
                             (one * is_within).masked_select(finite), bound, 1e-30));
    EXPECT_TRUE(of_gate[0].masked_select(up.gt(2.0)).eq(0).all().item<bool>());
    EXPECT_TRUE(of_gate[0]
                    .masked_select(finite)
                    .ne(0)
                    .eq(is_below.masked_select(finite).ne(0))
                    .all()
                    .item<bool>());
    EXPECT_TRUE(of_gate[2].masked_select(up.isnan()).isnan().all().item<bool>());
  }
}

/// Experts that multiply by n + 1, on rows that fill no whole vectors; expert 2 has none.
TEST_P(Kernels, WeighTheRowsOfExperts) {
  torch::manual_seed(moved(12));
  constexpr int64_t kRows = 41, kColumns = 75;
  const auto experts = at::rand({kRows, 5})
                           .index_fill(1, at::tensor({2}, at::kLong), 2.0)
                           .argsort(/*dim=*/1, /*descending=*/false);
  const auto chosen = experts.narrow(1, 0, 3);
  const detail::ExpertPlaces places(chosen, 5);
  EXPECT_EQ(places.counts[2], 0);
  const auto weigh = [&](const at::Tensor& rows, const at::Tensor& weights) {
    auto outputs = detail::gather_rows(rows, places);
    for (size_t n = 0; n < outputs.size(); ++n)
      outputs[n] = outputs[n] * static_cast<double>(n + 1);
    return detail::weigh_rows(outputs, weights, places);
  };
  const auto expected_sum = [&](const at::Tensor& rows, const at::Tensor& weights) {
    return rows * (weights * (chosen + 1)).sum(1, true);
  };
  for (const auto dtype : kElementTypes) {
    const auto precise = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto x = uniform({kRows, kColumns}, dtype), w = uniform({kRows, 3}, precise);
    const auto direction = uniform({kColumns, kRows}, dtype).t();
    const auto derivatives = [&](const auto& function, at::ScalarType type,
                                 at::ScalarType of_weights) {
      const auto rows = x.to(type).detach().requires_grad_();
      const auto weights = w.to(of_weights).detach().requires_grad_();
      const auto output = function(rows, weights);
      auto result = torch::autograd::grad({output}, {rows, weights}, {direction.to(type)}, true);
      const auto again =
          torch::autograd::grad({output}, {rows, weights}, {direction.to(type)}, true, true);
      const auto second =
          torch::autograd::grad({again[0].sum() + again[1].square().sum()}, {rows, weights});
      result.insert(result.end(), second.begin(), second.end());
      result.push_back(output);
      return result;
    };
    const auto actual = derivatives(weigh, dtype, precise);
    EXPECT_EQ(actual.back().scalar_type(), dtype);
    EXPECT_EQ(actual[1].scalar_type(), precise);
    // An expert's product, its gradient and the sum are rounded.
    EXPECT_TRUE(are_alike(actual, derivatives(expected_sum, at::kDouble, at::kDouble),
                          6 * unit_roundoff(dtype)))
        << c10::toString(dtype);
  }
}

/// Philox 4x32-7 of a counter and a key, from the paper's definition.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 7; ++round) {
    const auto a = uint64_t{0xD2511F53} * c[0];
    const auto b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k = {k[0] + 0x9E3779B9, k[1] + 0xBB67AE85};
  }
  return c;
}

TEST_P(Kernels, DrawPhilox) {
  // Random123's known answer for zeros, 7 rounds.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  constexpr uint64_t kKey = 0x0123456789abcdef;
  constexpr uint32_t kHead = 11, kIndex = 4000000000U;
  std::vector<uint32_t> words(3 * 64);
  detail::instruction_set().scores.draw(kKey, kHead, kIndex, 5, 3, words.data());
  for (uint32_t key = 0; key < words.size(); ++key) {
    const auto counter = (5 + key / 64) * 16 + key % 16;
    const auto expected = philox({counter, kIndex, kHead, 0}, {0x89abcdef, 0x01234567});
    ASSERT_EQ(words[key], expected[key % 64 / 16]) << key;
  }
}

/// Elements in any layout that fill no whole vectors and draw blocks, enough of them for several
/// tasks, and their gradients: dropped by the words of the call's key.
TEST_P(Kernels, DropElements) {
  constexpr double kProbability = 0.3;
  for (const auto dtype : kElementTypes) {
    torch::manual_seed(moved(11));
    const auto x = uniform({37, 5, 301}, dtype).transpose(0, 1).requires_grad_();
    const auto direction = uniform({301, 37, 5}, dtype).permute({2, 1, 0}).requires_grad_();
    const auto blocks = x.numel() / 64 + 1;
    const auto words = at::empty({blocks * 64}, at::kInt);
    torch::manual_seed(moved(12));
    detail::instruction_set().scores.draw(detail::draw_dropout_key(kProbability), 0, 0, 0, blocks,
                                          static_cast<uint32_t*>(words.data_ptr()));
    const auto numbers =
        words.narrow(0, 0, x.numel()).view(x.sizes()).to(at::kLong) & int64_t{0xffffffff};
    const auto kept = numbers >= static_cast<int64_t>(detail::dropout_threshold(kProbability));
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 1 - kProbability, 0.01);
    const auto dropped = [&](const at::Tensor& tensor) {
      const auto precise = tensor.detach().to(dtype == at::kDouble ? at::kDouble : at::kFloat);
      return (precise * (1 / (1 - kProbability))).to(dtype).masked_fill(~kept, 0.0);
    };
    torch::manual_seed(moved(12));
    const auto y = detail::drop_elements(x, kProbability);
    EXPECT_TRUE(y.equal(dropped(x))) << dtype;
    const auto gradient = torch::autograd::grad({y}, {x}, {direction}, /*retain_graph=*/true,
                                                /*create_graph=*/true)[0];
    EXPECT_TRUE(gradient.equal(dropped(direction))) << dtype;
    EXPECT_TRUE(torch::autograd::grad({gradient}, {direction}, {x.detach()})[0].equal(dropped(x)))
        << dtype;
  }
}

/// Rows and vectors are of any number, scaled or not; what was there counts, and NaN does not.
TEST_P(Kernels, MultiplyAndFindTheLargestOfEachLane) {
  torch::manual_seed(moved(5));
  constexpr int64_t kDepth = 19, kLanes = detail::kColumnMultiple;
  for (const int64_t rows : {1, 5, 6, 17}) {
    for (const int64_t columns : {16, 48, 64, 208}) {
      const auto a = at::randn({rows, kDepth});
      const auto b = at::randn({kDepth, columns});
      b[3][7].fill_(std::numeric_limits<float>::quiet_NaN());
      auto c = at::empty({rows, columns});
      auto maxima = at::full({rows, kLanes}, -1.0);
      detail::Product<float> product = {rows,
                                        columns,
                                        kDepth,
                                        a.const_data_ptr<float>(),
                                        kDepth,
                                        1,
                                        b.const_data_ptr<float>(),
                                        columns,
                                        c.mutable_data_ptr<float>(),
                                        columns,
                                        /*accumulate=*/false};
      product.factor = rows == 5 ? 0.25F : 1.0F;
      product.lane_maxima = maxima.mutable_data_ptr<float>();
      detail::instruction_set().matrix.of_float.multiply(product);
      EXPECT_TRUE(at::allclose(c, a.matmul(b) * product.factor, 1e-5, 1e-5, /*equal_nan=*/true));
      const auto of_row = c.nan_to_num(-1.0).amax(1).clamp_min(-1.0);
      EXPECT_TRUE(at::equal(maxima.amax(1), of_row)) << rows << ", " << columns;
    }
  }
}

/// Pairs of bfloat16 of a matrix [rows, 2 pairs], as 32-bit numbers [rows, pairs].
at::Tensor pairs_of(const at::Tensor& x) { return x.contiguous().view(at::kInt); }

struct PairSizes {
  int64_t rows, pairs, columns;
};

/// c of a product of pairs, and its value in float64: of rows in a row or in a column of a, of the
/// whole depth or of runs, added to what was there or not.
void expect_product_of_pairs(const PairSizes& sizes, bool by_columns, bool in_runs) {
  SCOPED_TRACE(c10::str(sizes.rows, " x ", sizes.pairs, " x ", sizes.columns, " ", by_columns));
  const auto a = at::randn({sizes.rows, 2 * sizes.pairs}).to(at::kBFloat16);
  const auto b = at::randn({2 * sizes.pairs, sizes.columns}).to(at::kBFloat16);
  const auto a_pairs = by_columns ? pairs_of(a).t().contiguous() : pairs_of(a);
  const auto b_pairs = pairs_of(b.t()).t().contiguous();  // [pairs, columns]
  const auto before = at::randn({sizes.rows, sizes.columns});
  auto c = before.clone();
  auto maxima = at::full({sizes.rows, detail::kColumnMultiple}, -1e3);
  detail::Product<float, detail::BFloat16Pair> product = {
      sizes.rows,
      sizes.columns,
      sizes.pairs,
      reinterpret_cast<const detail::BFloat16Pair*>(a_pairs.const_data_ptr()),
      by_columns ? 1 : sizes.pairs,
      by_columns ? sizes.rows : 1,
      reinterpret_cast<const detail::BFloat16Pair*>(b_pairs.const_data_ptr()),
      sizes.columns,
      c.mutable_data_ptr<float>(),
      sizes.columns,
      /*accumulate=*/in_runs};
  const detail::DepthRun runs[] = {{0, sizes.pairs / 3}, {sizes.pairs / 2, sizes.pairs / 4}};
  auto seen = at::ones({2 * sizes.pairs}, at::kDouble);
  if (in_runs) {
    product.runs = runs;
    product.run_count = 2;
    seen.zero_();
    for (const auto& run : runs) seen.narrow(0, 2 * run.first, 2 * run.count).fill_(1);
  } else {
    product.factor = 0.25F;
  }
  product.lane_maxima = maxima.mutable_data_ptr<float>();
  detail::instruction_set().matrix.of_pairs.multiply(product);
  auto expected = (a.to(at::kDouble) * seen).matmul(b.to(at::kDouble)) * product.factor;
  if (in_runs) expected = expected + before;
  // Sums of up to 600 products, each rounded to float32: up to 600 x 2^-24 of the largest, 100.
  EXPECT_TRUE(is_close(c, expected, 1e-3));  // a missing product is near 1
  EXPECT_TRUE(at::equal(maxima.amax(1), c.amax(1)));
}

TEST_P(Kernels, MultiplyPairs) {
  if (!detail::instruction_set().multiplies_bfloat16) return;
  torch::manual_seed(moved(8));
  for (const int64_t rows : {1, 6, 15, 16, 17, 33, 70}) {
    for (const int64_t pairs : {1, 8, 16, 23, 40, 300}) {
      for (const int64_t columns : {16, 32, 48, 80}) {
        for (const bool by_columns : {false, true}) {
          for (const bool in_runs : {false, true}) {
            expect_product_of_pairs({rows, pairs, columns}, by_columns, in_runs);
          }
        }
      }
    }
  }
}

/// A number that is NaN shows in its own row and column alone, and infinity in its sums.
TEST_P(Kernels, MultiplyPairsThatAreNotFinite) {
  if (!detail::instruction_set().multiplies_bfloat16) return;
  constexpr int64_t kRows = 19, kPairs = 9, kColumns = 48;
  auto a = at::ones({kRows, 2 * kPairs}, at::kBFloat16);
  auto b = at::ones({2 * kPairs, kColumns}, at::kBFloat16);
  a[18][17].fill_(std::numeric_limits<float>::quiet_NaN());
  b[17][40].fill_(std::numeric_limits<float>::infinity());
  const auto a_pairs = pairs_of(a), b_pairs = pairs_of(b.t()).t().contiguous();
  auto c = at::empty({kRows, kColumns});
  detail::instruction_set().matrix.of_pairs.multiply(
      {kRows, kColumns, kPairs,
       reinterpret_cast<const detail::BFloat16Pair*>(a_pairs.const_data_ptr()), kPairs, 1,
       reinterpret_cast<const detail::BFloat16Pair*>(b_pairs.const_data_ptr()), kColumns,
       c.mutable_data_ptr<float>(), kColumns, /*accumulate=*/false});
  const auto expected = a.to(at::kFloat).matmul(b.to(at::kFloat));
  EXPECT_TRUE(at::allclose(c, expected, 1e-6, 1e-6, /*equal_nan=*/true));
}

/// Two indicators of probability p: their correlation, in standard deviations from 0.
double correlation_in_sigma(const at::Tensor& a, const at::Tensor& b, double p) {
  const auto product = ((a - p) * (b - p)).to(at::kDouble).mean().item<double>();
  return product / (p * (1 - p)) * std::sqrt(static_cast<double>(a.numel()));
}

/// Fractions of all, rows and columns, and neighbors in every direction. A bound of 4.5 sigma for
/// the largest of some thousand would fail a good generator once in a hundred seeds: 5.5 does not.
TEST_P(Kernels, DrawWithoutBiasOrCorrelation) {
  constexpr int64_t kHeads = 4, kQueries = 512, kKeys = 1024;
  constexpr double kDropped = 0.1;
  const auto threshold = static_cast<int64_t>(kDropped * 0x1p32);
  const auto draw = [&](uint64_t seed) {
    auto words = at::empty({kHeads, kQueries, kKeys}, at::kInt);
    for (int64_t row = 0; row < kHeads * kQueries; ++row) {
      detail::instruction_set().scores.draw(
          seed, static_cast<uint32_t>(row / kQueries), static_cast<uint32_t>(row % kQueries), 0,
          kKeys / 64, reinterpret_cast<uint32_t*>(words.data_ptr<int>()) + row * kKeys);
    }
    return words.to(at::kLong).bitwise_and(0xffffffff).lt(threshold).to(at::kFloat);
  };
  const auto dropped = draw(1);
  const auto sigmas = [&](const at::Tensor& mean, double draws) {
    return (mean - kDropped).abs().max().item<double>() /
           std::sqrt(kDropped * (1 - kDropped) / draws);
  };
  EXPECT_LT(sigmas(dropped.mean(), kHeads * kQueries * kKeys), 4);
  EXPECT_LT(sigmas(dropped.mean(2), kKeys), 5.5);
  EXPECT_LT(sigmas(dropped.mean(1), kQueries), 5.5);
  for (int64_t dim = 0; dim < 3; ++dim) {
    for (const int64_t distance : {1, 2, 16, 64}) {
      const auto count = dropped.size(dim) - distance;
      if (count <= 0) continue;
      EXPECT_LT(std::abs(correlation_in_sigma(dropped.narrow(dim, 0, count),
                                              dropped.narrow(dim, distance, count), kDropped)),
                4)
          << "dim " << dim << ", distance " << distance;
    }
  }
  for (const uint64_t seed : {uint64_t{2}, uint64_t{3}, uint64_t{1} << 32}) {
    EXPECT_LT(std::abs(correlation_in_sigma(dropped, draw(seed), kDropped)), 4) << seed;
  }
}

}  // namespace
}  // namespace heed::test
