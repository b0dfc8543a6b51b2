// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

/// Options, and whether our kernel takes them on every processor.
struct PathCase {
  const char* name;
  bool block;
  AttendOptions options;
};

std::vector<PathCase> path_cases(const Sizes& s) {
  const auto bias = uniform({s.L, s.S}, at::kFloat);
  return {{"plain", false, AttendOptions()},
          {"causal", true, AttendOptions().causal(true)},
          {"window", true, AttendOptions().causal(true).window(2)},
          {"mask", false, AttendOptions().mask(causal_mask(s.L, s.S))},
          {"bias", false, AttendOptions().bias(bias)},
          {"bias, causal", true, AttendOptions().bias(bias).causal(true)},
          {"mask, causal", true, AttendOptions().mask(causal_mask(s.L, s.S)).causal(true)},
          {"bias that is learned", true,
           AttendOptions().bias(bias.clone().requires_grad_()).causal(true)},
          {"dropout", true, AttendOptions().causal(true).dropout(0.1)}};
}

TEST(AttendPath, IsBlockForWhatTheFusedKernelLacks) {
  const auto& slowest = *detail::instruction_sets().front();
  const detail::ScopedInstructionSet in_force(slowest);
  const auto other = slowest.registers >= 32 ? AttendPath::block : AttendPath::fused;
  Sizes sizes;
  sizes.L = 33;  // more than few
  for (const int64_t key_length : {33, 40}) {
    sizes.S = key_length;
    const auto inputs = make_inputs(sizes, at::kDouble);
    for (const auto& c : path_cases(sizes)) {
      EXPECT_EQ(attend_path(inputs, c.options), c.block ? AttendPath::block : other)
          << c.name << ", S " << key_length;
    }
  }
  const auto inputs = make_inputs(sizes, at::kDouble);
  const at::NoGradGuard no_grad;  // a learned bias asks for no gradient here
  const auto bias = uniform({sizes.L, sizes.S}, at::kFloat).requires_grad_();
  EXPECT_EQ(attend_path(inputs, AttendOptions().bias(bias)), other);
  sizes.Dv = 5;
  EXPECT_EQ(attend_path(make_inputs(sizes, at::kDouble)), AttendPath::block);
}

TEST(AttendPath, IsBlockWhereThatIsFaster) {
  Sizes sizes;
  sizes.L = sizes.S = 33;
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    const bool fast_products = set->registers >= 32;
    for (const bool training : {false, true}) {
      const auto path = [&](at::ScalarType dtype, const AttendOptions& options = {}) {
        auto inputs = make_inputs(sizes, dtype);
        inputs.query.requires_grad_(training);
        return attend_path(inputs, options);
      };
      const auto block_if = [&](bool faster) {
        return training || faster ? AttendPath::block : AttendPath::fused;
      };
      EXPECT_EQ(path(at::kFloat), block_if(fast_products));
      EXPECT_EQ(path(at::kDouble), block_if(fast_products || set->vector_bytes >= 32));
      EXPECT_EQ(path(at::kFloat, AttendOptions().causal(true)), AttendPath::block);
      EXPECT_EQ(path(at::kDouble, AttendOptions().causal(true)), AttendPath::block);
      EXPECT_EQ(path(at::kHalf), block_if(set->converts_half));
      const bool has_tiles =
          set->has_tile_registers || !detail::blas_properties().bfloat16_tiles;  // if LibTorch has
      EXPECT_EQ(path(at::kBFloat16), block_if(fast_products && has_tiles));
    }
  }
}

/// The negative bit: such a tensor's memory holds the negative of its values.
at::Tensor negated_view(const at::Tensor& tensor) {
  return at::imag(at::complex(tensor, -tensor).conj());
}

TEST(Attend, ReadsTensorsWithTheNegativeBit) {
  torch::manual_seed(moved(1));
  Sizes sizes;
  sizes.L = sizes.S = 40;
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto plain = make_inputs(sizes, dtype);
    const Inputs negative = {negated_view(plain.query), negated_view(plain.key),
                             negated_view(plain.value)};
    ASSERT_TRUE(negative.key.is_neg());
    const auto bias = uniform({sizes.L, sizes.S}, dtype), sinks = uniform({sizes.H}, dtype);
    const auto expected = AttendOptions().bias(bias).sinks(sinks);
    const auto options = AttendOptions().bias(negated_view(bias)).sinks(negated_view(sinks));
    for (const auto path : {AttendPath::block, AttendPath::decode, AttendPath::math}) {
      const detail::ScopedPath in_force(path);
      EXPECT_TRUE(is_close(attend(negative, options), attend(plain, expected), 0.0))
          << to_string(path);
    }
    const detail::ScopedPath in_force(AttendPath::block);
    auto query = plain.query.detach().clone().requires_grad_();
    const auto output = attend(query, plain.key, plain.value);
    const auto direction = uniform(output.sizes(), dtype);
    const auto of_view =
        torch::autograd::grad({output}, {query}, {negated_view(direction)}, /*retain_graph=*/true);
    const auto of_plain = torch::autograd::grad({output}, {query}, {direction});
    EXPECT_TRUE(of_view[0].equal(of_plain[0]));
  }
}

/// Windows over one sequence of numbers: rows that begin one element apart.
TEST(Attend, TakesRowsThatOverlap) {
  torch::manual_seed(moved(1));
  const auto numbers = uniform({40}, at::kFloat);
  const auto query = numbers.as_strided({1, 2, 5, 8}, {9, 4, 1, 1});
  const auto key = uniform({1, 2, 7, 8}, at::kFloat), value = uniform({1, 2, 7, 8}, at::kFloat);
  const auto expected = attend(query.contiguous(), key, value);
  for (const auto path : {AttendPath::decode, AttendPath::block, AttendPath::fused}) {
    const detail::ScopedPath in_force(path);
    EXPECT_TRUE(is_close(attend(query, key, value), expected, 1e-6)) << to_string(path);
  }
}

/// The derivative in a direction, against a difference quotient; whatever path is asked for.
TEST(Attend, CarriesForwardModeTangents) {
  torch::manual_seed(moved(1));
  const auto inputs = make_inputs({}, at::kDouble);
  const auto direction = uniform(inputs.query.sizes(), at::kDouble);
  const auto at_step = [&](double step) {
    return attend(inputs.query + step * direction, inputs.key, inputs.value,
                  AttendOptions().causal(true));
  };
  const auto expected = (at_step(1e-5) - at_step(-1e-5)) / 2e-5;  // right to 1e-10
  for (const auto path : {AttendPath::decode, AttendPath::block, AttendPath::fused}) {
    const detail::ScopedPath in_force(path);
    const auto level = torch::autograd::ForwardADLevel::get_next_idx();
    const auto query = at::_make_dual(inputs.query, direction, static_cast<int64_t>(level));
    const auto output = attend(query, inputs.key, inputs.value, AttendOptions().causal(true));
    EXPECT_TRUE(is_close(output._fw_grad(level), expected, 1e-8)) << to_string(path);
    torch::autograd::ForwardADLevel::release_idx(level);
  }
}

/// Shapes come out of tensors without memory, whatever is asked for.
TEST(Attend, GivesShapesOnTheMetaDevice) {
  const Sizes sizes{2, 4, 2, 5, 7, 8, 6};
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  const auto query = at::empty({sizes.B, sizes.H, sizes.L, sizes.D}, meta);
  const auto key = at::empty({sizes.B, sizes.G, sizes.S, sizes.D}, meta);
  const auto value = at::empty({sizes.B, sizes.G, sizes.S, sizes.Dv}, meta);
  const auto scores = at::empty({sizes.L, sizes.S}, meta), heads = at::empty({sizes.H}, meta);
  std::vector<AttendOptions> all = {AttendOptions(),
                                    AttendOptions().causal(true),
                                    AttendOptions().window(3),
                                    AttendOptions().causal(true).window(3),
                                    AttendOptions().mask(scores.to(at::kBool)),
                                    AttendOptions().mask(scores.to(at::kLong)).causal(true),
                                    AttendOptions().bias(scores),
                                    AttendOptions().bias(scores).causal(true),
                                    AttendOptions().dropout(0.5).scale(2.0),
                                    AttendOptions().softcap(2.0).causal(true),
                                    AttendOptions().alibi_slopes(heads).causal(true),
                                    AttendOptions().sinks(heads).window(2)};
  const auto lengths = at::empty({sizes.B}, meta.dtype(at::kLong));
  const auto tokens = at::empty({sizes.B, sizes.S}, meta.dtype(at::kLong));
  const auto relative = at::empty({sizes.H, 5}, meta);
  const std::vector<AttendOptions> by_place = {
      AttendOptions().left_window(2).right_window(1),
      AttendOptions().top_left(true).causal(true),
      AttendOptions().window(2).global_tokens(tokens.to(at::kBool)),
      AttendOptions().query_lengths(lengths).key_lengths(lengths).causal(true),
      AttendOptions()
          .key_lengths(lengths)
          .documents(tokens.narrow(1, 0, sizes.L))
          .key_documents(tokens),
      AttendOptions().alibi_slopes(at::empty({sizes.B, sizes.H}, meta)),
      AttendOptions().relative_bias(relative),
      AttendOptions().relative_bias(relative).relative_positions(tokens).key_lengths(lengths),
      AttendOptions().mask(scores.to(at::kBool).unsqueeze(0)).mask_batch(MaskBatch::cycled)};
  all.insert(all.end(), by_place.begin(), by_place.end());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(attend(query, key, value, all[i]).sizes(),
              at::IntArrayRef({sizes.B, sizes.H, sizes.L, sizes.Dv}))
        << i;
    const auto [output, weights] = attend_with_weights(query, key, value, all[i]);
    EXPECT_EQ(output.sizes(), at::IntArrayRef({sizes.B, sizes.H, sizes.L, sizes.Dv})) << i;
    EXPECT_EQ(weights.sizes(), at::IntArrayRef({sizes.B, sizes.H, sizes.L, sizes.S})) << i;
  }
}

TEST(AttendPath, IsNotForcedBeyondWhatAPathTakes) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  const auto inputs = make_inputs({}, at::kFloat);
  const auto query = inputs.query.clone().requires_grad_();
  const auto half = make_inputs({}, at::kDouble);
  {
    const detail::ScopedPath in_force(AttendPath::decode);
    EXPECT_EQ(attend_path(inputs), AttendPath::decode);
    // Gradients, dropout, float64, strides.
    EXPECT_NE(attend_path({query, inputs.key, inputs.value}), AttendPath::decode);
    EXPECT_NE(attend_path(inputs, AttendOptions().dropout(0.1)), AttendPath::decode);
    EXPECT_NE(attend_path(half), AttendPath::decode);
    const auto strided = inputs.key.transpose(2, 3).contiguous().transpose(2, 3);
    EXPECT_NE(attend_path({inputs.query, strided, inputs.value}), AttendPath::decode);
    const auto [output, weights] = attend_with_weights(inputs);
    EXPECT_TRUE(is_close(output, attend(inputs), 1e-6));
    EXPECT_TRUE(weights.defined());
  }
  const detail::ScopedPath in_force(AttendPath::fused);
  EXPECT_EQ(attend_path(inputs), AttendPath::fused);
  EXPECT_NE(attend_path(inputs, AttendOptions().softcap(2.0)), AttendPath::fused);
  EXPECT_NE(attend_path(inputs, AttendOptions().sinks(at::zeros({4}))), AttendPath::fused);
}

TEST(AttendPath, IsFusedForWideHeadsWhereBlasIsFast) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  const Sizes sizes{2, 1, 1, 512, 512, 512, 512};
  auto inputs = make_inputs(sizes, at::kFloat);
  const bool block =
      detail::instruction_set().registers >= 32 && !detail::blas_properties().wide_vectors;
  EXPECT_EQ(attend_path(inputs), block ? AttendPath::block : AttendPath::fused);
  EXPECT_EQ(attend_path(inputs, AttendOptions().causal(true)), AttendPath::block);
  inputs.query.requires_grad_();
  EXPECT_EQ(attend_path(inputs), AttendPath::block);
}

TEST(AttendPath, HasAName) {
  EXPECT_EQ(to_string(AttendPath::decode), "decode");
  EXPECT_EQ(to_string(AttendPath::fused), "fused");
  EXPECT_EQ(to_string(AttendPath::block), "block");
  EXPECT_EQ(to_string(AttendPath::math), "math");
}

/// By how much LibTorch's kernel and ours may differ, |values| <= 1. The fused path is the same
/// kernel, but for rows that it groups in another order. The others are not: in float32 each may
/// err by 16 roundoffs (its dot products, exp and sums); in half precision each rounds its output
/// once, by half a roundoff, and LibTorch's the weights too, by one.
double roundoffs(const Inputs& inputs, const AttendOptions& options) {
  const auto path = attend_path(inputs, options);
  return path != AttendPath::fused && inputs.query.scalar_type() == at::kFloat ? 32 : 4;
}

/// Where at::scaled_dot_product_attention takes the same arguments, it gives the same numbers.
TEST(Attend, EqualsScaledDotProductAttention) {
  torch::manual_seed(moved(1));
  const auto expect_equal = [](const Sizes& sizes, const AttendOptions& options,
                               const std::optional<at::Tensor>& sdpa_mask) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const auto device : devices()) {
        const auto inputs = make_inputs(sizes, at::device(device).dtype(dtype));
        auto mask = sdpa_mask;
        if (mask) mask = mask->to(device);
        auto ours = options;
        if (ours.mask()) ours.mask(ours.mask()->to(device));
        if (ours.bias()) ours.bias(ours.bias()->to(device));
        const auto expected =
            at::scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, mask, 0.0,
                                             options.causal(), options.scale(), sizes.H != sizes.G);
        EXPECT_TRUE(is_close(attend(inputs, ours), expected,
                             roundoffs(inputs, ours) * unit_roundoff(dtype)));
      }
    }
  };
  Sizes s;
  s.L = s.S = 37;
  expect_equal(s, AttendOptions(), {});
  expect_equal(s, AttendOptions().scale(0.25), {});
  expect_equal(s, AttendOptions().causal(true), {});
  const auto mask = at::rand({s.L, s.S}).gt(0.3);
  expect_equal(s, AttendOptions().mask(mask), mask);
  const auto padding = padding_mask(at::arange(2) + 30, s.S);
  expect_equal(s, AttendOptions().mask(padding), padding);
  s.G = 2;
  expect_equal(s, AttendOptions(), {});
  expect_equal(s, AttendOptions().mask(padding), padding);
  expect_equal(s, AttendOptions().causal(true), {});
  s.L = 1;
  expect_equal(s, AttendOptions(), {});
}

/// The result of `attend`, and the output of `attend_with_weights`.
std::vector<at::Tensor> both_outputs(const Inputs& inputs, const AttendOptions& options) {
  torch::manual_seed(moved(3));
  const auto output = attend(inputs, options);
  torch::manual_seed(moved(3));
  return {output, std::get<0>(attend_with_weights(inputs, options))};
}

at::Tensor with_changed_token(const at::Tensor& tensor, int64_t j) {
  auto changed = tensor.clone();
  changed.select(2, j).fill_(100.0);
  return changed;
}

TEST(Attend, LeaksNoFutureToken) {
  torch::manual_seed(moved(2));
  for (const auto& [length, key_length] : {std::pair<int64_t, int64_t>{6, 6}, {4, 9}, {9, 4}}) {
    const Sizes sizes{2, 4, 2, length, key_length, 8, 8};
    const auto inputs = make_inputs(sizes, at::kFloat);
    for (const auto& c : path_cases(sizes)) {
      if (!c.options.causal() && !c.options.mask()) continue;
      const auto before = both_outputs(inputs, c.options);
      for (int64_t j = 0; j < key_length; ++j) {
        const Inputs changed = {inputs.query, with_changed_token(inputs.key, j),
                                with_changed_token(inputs.value, j)};
        const auto after = both_outputs(changed, c.options);
        const auto first_seer = std::clamp<int64_t>(j - (key_length - length), 0, length);
        for (size_t i = 0; i < before.size(); ++i) {
          EXPECT_TRUE(before[i].narrow(2, 0, first_seer).equal(after[i].narrow(2, 0, first_seer)))
              << c.name << ", key " << j << ", result " << i;
          if (c.options.window()) continue;
          EXPECT_FALSE(before[i].equal(after[i])) << c.name << ", key " << j << ", result " << i;
        }
      }
    }
  }
}

TEST(Attend, GivesEmptyOrZeroForEmptyInput) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    for (const auto& [batch, length, key_length] :
         std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {0, 5, 5}, {2, 0, 5}, {2, 5, 0}, {2, 0, 0}, {0, 0, 0}}) {
      const Sizes sizes{batch, 4, 2, length, key_length, 8, 8};
      const auto bias = at::zeros({length, key_length}).requires_grad_();
      const auto relative = at::zeros({sizes.H, 3}).requires_grad_();
      const auto slopes = at::zeros({batch, sizes.H}).requires_grad_();
      const auto lengths = [&](int64_t each) { return at::full({batch}, each, at::kLong); };
      const auto tokens = at::ones({batch, key_length}, at::kBool);
      const auto padded =
          AttendOptions().query_lengths(lengths(length)).key_lengths(lengths(key_length));
      std::vector<AttendOptions> all = {
          AttendOptions(),
          AttendOptions().causal(true).window(2),
          AttendOptions().mask(at::ones({batch, length, key_length}, at::kBool)),
          AttendOptions().bias(bias).dropout(0.5),
          AttendOptions().relative_bias(relative).alibi_slopes(slopes).left_window(1),
          AttendOptions().window(1).global_tokens(tokens),
          AttendOptions(padded).causal(true),
          AttendOptions(padded).window(1).global_tokens(at::ones({key_length}, at::kBool)),
          AttendOptions(padded)
              .documents(at::zeros({length}, at::kLong))
              .key_documents(at::zeros({key_length}, at::kLong))};
      if (length <= key_length) {
        all.push_back(AttendOptions().relative_bias(relative).relative_positions(
            at::zeros({batch, key_length}, at::kLong)));
      }
      for (const auto& options : all) {
        const auto inputs = make_inputs(sizes, dtype);
        const auto leaves = leaves_of(inputs);
        const auto output = attend(inputs, options);
        EXPECT_TRUE(is_close(output, at::zeros({batch, sizes.H, length, sizes.Dv}), 0));
        const auto [same, weights] = attend_with_weights(inputs, options);
        EXPECT_TRUE(is_close(same, at::zeros({batch, sizes.H, length, sizes.Dv}), 0));
        EXPECT_TRUE(is_close(weights, at::zeros({batch, sizes.H, length, key_length}), 0));
        const auto gradients = torch::autograd::grad({output.sum()}, leaves);
        for (size_t i = 0; i < leaves.size(); ++i) {
          EXPECT_TRUE(is_close(gradients[i], at::zeros(leaves[i].sizes()), 0));
        }
      }
    }
  }
}

TEST(Attend, HidesKeysOfValuesWithoutElements) {
  const auto query = at::zeros({1, 1, 2, 4});
  const auto weights = std::get<1>(
      attend_with_weights(query, query, at::zeros({1, 1, 2, 0}), AttendOptions().causal(true)));
  EXPECT_TRUE(is_close(weights[0][0], at::tensor({1.0, 0.0, 0.5, 0.5}).view({2, 2}), 0.0));
}

/// Strides that no contiguous tensor has: expanded, sliced, and with a last stride that is not 1.
TEST(Attend, TakesAnyStrides) {
  torch::manual_seed(moved(4));
  const Sizes sizes{2, 4, 2, 7, 9, 17, 17};
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> layouts = {
      [](const at::Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); },
      [](const at::Tensor& t) {
        return at::cat({t, t}, 2).narrow(2, 0, t.size(2));
      },
      [](const at::Tensor& t) {
        return at::cat({t, t}, 3).narrow(3, t.size(3), t.size(3));
      },
      [](const at::Tensor& t) { return t.contiguous(); }};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto tolerance = 4 * unit_roundoff(dtype);
    const auto inputs = make_inputs(sizes, dtype);
    const auto expanded = inputs.query.narrow(0, 0, 1).expand(inputs.query.sizes());
    for (const auto& route : routes()) {
      const ScopedRoute in_force(route);
      for (const bool causal : {false, true}) {
        const auto options = AttendOptions().causal(causal);
        const auto expected = attend(inputs, options);
        for (size_t i = 0; i < layouts.size(); ++i) {
          const auto actual = attend(layouts[i](inputs.query), layouts[i](inputs.key),
                                     layouts[i](inputs.value), options);
          EXPECT_TRUE(is_close(actual, expected, tolerance))
              << "layout " << i << ", " << route.name << ", " << dtype;
        }
      }
      EXPECT_TRUE(is_close(attend(expanded, inputs.key, inputs.value),
                           attend(expanded.contiguous(), inputs.key, inputs.value), tolerance))
          << route.name << ", " << dtype;
    }
  }
}

/// A bias of -inf hides as a mask does, whole rows too.
TEST(Attend, TakesMinusInfinityInTheBias) {
  torch::manual_seed(moved(5));
  const Sizes sizes;
  const auto inputs = make_inputs(sizes, at::kFloat);
  auto mask = at::rand({sizes.L, sizes.S}).gt(0.4);
  mask[1].fill_(false);
  const auto bias = at::zeros({sizes.L, sizes.S})
                        .masked_fill(mask.logical_not(), -std::numeric_limits<float>::infinity());
  const auto expected = attend(inputs, AttendOptions().mask(mask));
  for (const bool learned : {false, true}) {
    const auto options = AttendOptions().bias(bias.clone().requires_grad_(learned));
    for (const auto& output : both_outputs(inputs, options)) {
      EXPECT_TRUE(is_close(output, expected, 4 * unit_roundoff(at::kFloat)));
      EXPECT_EQ(output.select(2, 1).abs().max().item<float>(), 0.0F);
    }
  }
}

/// Products of float16 numbers that overflow float16, though the scaled scores do not.
TEST(Attend, ScalesBeforeFloat16Overflows) {
  const auto query = at::full({1, 1, 2, 64}, 60.0, at::kHalf);
  const auto value = uniform({1, 1, 3, 64}, at::kHalf);
  for (const auto& output :
       both_outputs({query, at::full({1, 1, 3, 64}, 60.0, at::kHalf), value}, {})) {
    EXPECT_TRUE(is_close(output, value.to(at::kFloat).mean(2, true).expand({1, 1, 2, 64}),
                         4 * unit_roundoff(at::kHalf)));
  }
}

}  // namespace
}  // namespace heed::test
