// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/multi_head_attention.h>
#include <heed/rotary_embedding.h>
#include <torch/utils.h>

#include <cmath>

#include "modules/layers/remembered_angles.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::rotary_embedding {
namespace {

constexpr int64_t B = 2, H = 3, L = 5, D = 8;

/// Element by element in double: pair i of `turning` elements turns by position * base^(-2 i / R).
at::Tensor rotated(const at::Tensor& x, const RotaryEmbeddingOptions& options, int64_t first) {
  const auto result = x.to(at::kDouble).contiguous().clone();
  const auto dim = options.rotary_dim().value_or(options.head_dim());
  auto elements = result.accessor<double, 4>();
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t l = 0; l < x.size(2); ++l) {
        for (int64_t i = 0; i < dim / 2; ++i) {
          const bool interleaved = options.pairing() == RotaryPairing::interleaved;
          auto& re = elements[b][h][l][interleaved ? 2 * i : i];
          auto& im = elements[b][h][l][interleaved ? 2 * i + 1 : i + dim / 2];
          const double angle =
              static_cast<double>(first + l) *
              std::pow(options.base(), -2.0 * static_cast<double>(i) / static_cast<double>(dim));
          const double old_re = re;
          re = old_re * std::cos(angle) - im * std::sin(angle);
          im = im * std::cos(angle) + old_re * std::sin(angle);
        }
      }
    }
  }
  return result;
}

TEST(RotaryEmbedding, TurnsPairsByTheirAngles) {
  torch::manual_seed(moved(1));
  for (const auto pairing : {RotaryPairing::half_split, RotaryPairing::interleaved}) {
    for (const int64_t rotary_dim : {2, 4, 8}) {
      const auto options =
          RotaryEmbeddingOptions(D).pairing(pairing).rotary_dim(rotary_dim).base(100.0);
      RotaryEmbedding rotary(options);
      for (const auto device : devices()) {
        for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
          const auto x = uniform({B, L, H, D}, at::device(device).dtype(dtype)).transpose(1, 2);
          // Angles up to 30 in float64; products of two numbers of at most 1, each rounded, in
          // float32 at least; and the result's rounding, whose size is at most sqrt(2).
          const auto computed = unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat);
          const double tolerance =
              60 * unit_roundoff(at::kDouble) + 4 * computed + 2 * unit_roundoff(dtype);
          EXPECT_TRUE(is_close(rotary(x), rotated(x.cpu(), options, 0), tolerance));
          const auto later = at::arange(26, 26 + L, at::device(device).dtype(at::kInt));
          EXPECT_TRUE(is_close(rotary(x, later), rotated(x.cpu(), options, 26), tolerance));
          EXPECT_EQ(rotary(x).scalar_type(), dtype);
        }
      }
    }
  }
}

TEST(RotaryEmbedding, MakesScoresDependOnDistancesAlone) {
  torch::manual_seed(moved(2));
  RotaryEmbedding rotary(D);
  const auto query = uniform({1, 1, L, D}, at::kDouble), key = uniform({1, 1, L, D}, at::kDouble);
  const auto scores = [&](int64_t first) {
    const auto positions = at::arange(first, first + L);
    return at::matmul(rotary(query, positions), rotary(key, positions).transpose(2, 3));
  };
  EXPECT_TRUE(is_close(scores(1000), scores(0), 8 * 1000 * unit_roundoff(at::kDouble)));
  EXPECT_FALSE(is_close(scores(0), at::matmul(query, key.transpose(2, 3)), 1e-2));
}

/// An angle's roundoff in float64 grows with the position; those of the cosines do not.
TEST(RotaryEmbedding, IsAsExactFarAway) {
  torch::manual_seed(moved(5));
  constexpr int64_t kHeadDim = 64;
  const RotaryEmbeddingOptions options(kHeadDim);
  RotaryEmbedding rotary(options);
  for (const int64_t first : {int64_t{1'000'000}, int64_t{1} << 24, int64_t{1} << 31}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const auto x = uniform({1, 2, L, kHeadDim}, dtype);
      const auto computed = unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat);
      const auto tolerance = 4 * static_cast<double>(first) * unit_roundoff(at::kDouble) +
                             4 * computed + 2 * unit_roundoff(dtype);
      EXPECT_TRUE(
          is_close(rotary(x, at::arange(first, first + L)), rotated(x, options, first), tolerance))
          << first << ' ' << dtype;
      EXPECT_TRUE(is_close(rotary->rotate(x, rotary->angles(first, L, x.options())),
                           rotated(x, options, first), tolerance));
    }
  }
}

/// The first queries then stand before the first key.
TEST(RotaryEmbedding, TakesMoreQueriesThanKeys) {
  torch::manual_seed(moved(3));
  MultiHeadAttention module(
      MultiHeadAttentionOptions(H * D, H).dropout(0.0).rotary(RotaryEmbeddingOptions(D)));
  const auto query = uniform({B, L, H * D}, at::kFloat), key = uniform({B, 2, H * D}, at::kFloat);
  const auto output = module->forward(query, key, key);
  EXPECT_TRUE(is_close(output.narrow(1, L - 2, 2),
                       module->forward(query.narrow(1, L - 2, 2), key, key), 1e-6));
}

TEST(RotaryEmbedding, TakesPositionsOfEachSequence) {
  torch::manual_seed(moved(3));
  RotaryEmbedding rotary(D);
  const auto x = uniform({2, H, 3, D}, at::kFloat);
  const auto output = rotary(x, at::tensor({0, 1, 2, 7, 8, 9}, at::kLong).view({2, 3}));
  EXPECT_TRUE(is_close(output[0], rotary(x)[0], 0.0));
  EXPECT_TRUE(is_close(output[1], rotary(x, at::arange(7, 10))[1], 0.0));
  EXPECT_EQ(rotary(x.narrow(2, 0, 0)).sizes(), at::IntArrayRef({2, H, 0, D}));
}

TEST(RotaryEmbedding, ScalesOnlyWhatTurnsSlowly) {
  const auto frequency = [](const RotaryEmbeddingOptions& options) {
    return RotaryEmbedding(options)->angles(at::ones({1}, at::kLong), at::kDouble).sin.asin();
  };
  const auto scaled = [](const RotaryScaling& scaling) {
    return RotaryEmbeddingOptions(64).scaling(scaling);
  };
  const auto plain = frequency(RotaryEmbeddingOptions(64)).flatten();
  const std::vector<RotaryScaling> scalings = {
      NtkScaling(4.0), YarnScaling(4.0, 4096).attention_factor(1.0), Llama3Scaling(4.0, 4096)};
  for (const auto& scaling : scalings) {
    const auto ratio = plain / frequency(scaled(scaling)).flatten();
    EXPECT_NEAR(ratio[0].item<double>(), 1.0, 1e-6);
    EXPECT_NEAR(ratio[-1].item<double>(), 4.0, 1e-5);
    EXPECT_TRUE(ratio.diff().ge(-1e-5).all().item<bool>());
  }
  EXPECT_TRUE(is_close(frequency(scaled(LinearScaling(4.0))).flatten() * 4.0, plain, 1e-6));
  // The dynamic kind is the plain one up to the length trained for.
  EXPECT_TRUE(
      is_close(frequency(scaled(NtkScaling(4.0).original_length(8))).flatten(), plain, 1e-6));
}

/// 32 turns within 4096 positions are those of pair 10.5 of 32, one turn of pair 22.5: from pair 10
/// to 23 the frequencies go over, linearly, to a quarter.
TEST(RotaryEmbedding, YarnGoesOverBetweenWholePairs) {
  const auto frequency = [](const RotaryEmbeddingOptions& options) {
    return RotaryEmbedding(options)->angles(at::ones({1}, at::kLong), at::kDouble).sin.asin();
  };
  const RotaryEmbeddingOptions options(64);
  const auto ratio = frequency(RotaryEmbeddingOptions(options).scaling(
                         YarnScaling(4.0, 4096).attention_factor(1.0))) /
                     frequency(options);
  const auto scaled = ((at::arange(32, at::kDouble) - 10.0) / 13.0).clamp(0.0, 1.0);
  EXPECT_TRUE(is_close(ratio.flatten(), 1.0 - 0.75 * scaled, 1e-6));
}

/// Between pairs 10.4729... and 22.5132..., which turn 32 times and once.
TEST(RotaryEmbedding, YarnGoesOverBetweenAnyPairs) {
  const auto frequency = [](const RotaryEmbeddingOptions& options) {
    return RotaryEmbedding(options)->angles(at::ones({1}, at::kLong), at::kDouble).sin.asin();
  };
  const RotaryEmbeddingOptions options(64);
  const auto yarn = YarnScaling(4.0, 4096).attention_factor(1.0).truncate(false);
  const auto scaled_options = RotaryEmbeddingOptions(options).scaling(yarn);
  const auto ratio = frequency(scaled_options) / frequency(options);
  const auto pair = [](double turns) {  // turns = 4096 / (2 pi) * 10000^(-pair / 32)
    return 32.0 * std::log(4096.0 / (turns * 2.0 * std::acos(-1.0))) / std::log(10000.0);
  };
  const auto low = pair(32.0), high = pair(1.0);
  EXPECT_NE(low, std::floor(low));
  const auto scaled = ((at::arange(32, at::kDouble) - low) / (high - low)).clamp(0.0, 1.0);
  EXPECT_TRUE(is_close(ratio.flatten(), 1.0 - 0.75 * scaled, 1e-6));
  EXPECT_EQ(printed(RotaryEmbedding(scaled_options)),
            "heed::RotaryEmbedding(head_dim=64, base=10000, scaling=yarn(factor=4, "
            "original_length=4096, beta_fast=32, beta_slow=1, truncate=false, "
            "attention_factor=1))");
}

/// m(1), m(mscale) / m(mscale_all_dim), or the one that is given.
TEST(RotaryEmbedding, YarnMultipliesByItsScales) {
  const auto factor = [](const YarnScaling& scaling) {
    const RotaryEmbedding rotary(RotaryEmbeddingOptions(8).scaling(scaling));
    return rotary->angles(at::zeros({1}, at::kLong), at::kDouble).cos[0][0][0][0].item<double>();
  };
  const auto m = [](double x) { return 0.1 * x * std::log(40.0) + 1.0; };
  const YarnScaling yarn(40.0, 4096);
  EXPECT_NEAR(factor(yarn), m(1.0), 1e-12);
  EXPECT_NEAR(factor(YarnScaling(yarn).mscale(0.7)), m(1.0), 1e-12);
  EXPECT_NEAR(factor(YarnScaling(yarn).mscale_all_dim(0.7)), m(1.0), 1e-12);
  const auto both = YarnScaling(yarn).mscale(0.7).mscale_all_dim(0.4);
  EXPECT_NEAR(factor(both), m(0.7) / m(0.4), 1e-12);
  EXPECT_NEAR(factor(YarnScaling(both).attention_factor(1.5)), 1.5, 1e-12);
  EXPECT_EQ(printed(RotaryEmbedding(RotaryEmbeddingOptions(8).scaling(both))),
            "heed::RotaryEmbedding(head_dim=8, base=10000, scaling=yarn(factor=40, "
            "original_length=4096, beta_fast=32, beta_slow=1, mscale=0.7, mscale_all_dim=0.4))");
  EXPECT_ERROR("RotaryEmbedding: mscale (-1) must be finite and at least 0",
               factor(YarnScaling(yarn).mscale(-1.0)));
  EXPECT_ERROR("RotaryEmbedding: mscale_all_dim (inf) must be finite and at least 0",
               factor(YarnScaling(yarn).mscale_all_dim(INFINITY)));
}

/// Up to the length trained for by the short factors, beyond it by the long ones: all positions of
/// a call.
TEST(RotaryEmbedding, DividesEachFrequencyByAFactorOfItsOwn) {
  const std::vector<double> short_factors = {1.0, 1.5, 2.0, 4.0},
                            long_factors = {2.0, 3.0, 5.0, 9.0};
  RotaryEmbedding rotary(RotaryEmbeddingOptions(D).base(100.0).scaling(
      LongRopeScaling(short_factors, long_factors, 6).attention_factor(1.25)));
  for (const auto device : devices()) {
    for (const int64_t last : {5, 6}) {
      const auto positions = at::tensor({int64_t{1}, last}, at::device(device).dtype(at::kLong));
      const auto angles = rotary->angles(positions, at::kDouble);
      const auto& factors = last < 6 ? short_factors : long_factors;
      for (int64_t i = 0; i < 4; ++i) {
        const double angle = std::pow(100.0, -2.0 * static_cast<double>(i) / 8.0) / factors[i];
        EXPECT_NEAR(angles.cos[0][0][0][i].item<double>(), 1.25 * std::cos(angle), 1e-12) << i;
        EXPECT_NEAR(angles.sin[0][0][1][i].item<double>(),
                    1.25 * std::sin(angle * static_cast<double>(last)), 1e-12)
            << i;
      }
    }
  }
  EXPECT_EQ(rotary(at::ones({B, H, 0, D})).sizes(), at::IntArrayRef({B, H, 0, D}));
  EXPECT_EQ(
      printed(rotary),
      "heed::RotaryEmbedding(head_dim=8, base=100, scaling=longrope(short_factors=[1, 1.5, 2, "
      "4], long_factors=[2, 3, 5, 9], original_length=6, attention_factor=1.25))");
}

/// Every field makes a difference, whatever is printed of it.
TEST(RotaryEmbedding, ComparesAllItsOptions) {
  const auto plain = [] { return RotaryEmbeddingOptions(D).base(10000.0); };
  const auto scaled = [&](const RotaryScaling& scaling) { return plain().scaling(scaling); };
  const std::vector<RotaryEmbeddingOptions> different = {
      plain(),
      RotaryEmbeddingOptions(D + 2),
      plain().base(10000.001),
      plain().rotary_dim(4),
      plain().pairing(RotaryPairing::interleaved),
      scaled(LinearScaling(2.0)),
      scaled(LinearScaling(2.0000001)),
      scaled(NtkScaling(2.0)),
      scaled(NtkScaling(2.0).original_length(8)),
      scaled(YarnScaling(2.0, 8)),
      scaled(YarnScaling(2.0, 9)),
      scaled(YarnScaling(2.0, 8).beta_fast(31.0)),
      scaled(YarnScaling(2.0, 8).beta_slow(2.0)),
      scaled(YarnScaling(2.0, 8).truncate(false)),
      scaled(YarnScaling(2.0, 8).attention_factor(1.0)),
      scaled(YarnScaling(2.0, 8).mscale(1.0)),
      scaled(YarnScaling(2.0, 8).mscale_all_dim(1.0)),
      scaled(Llama3Scaling(2.0, 8)),
      scaled(Llama3Scaling(2.0, 9)),
      scaled(Llama3Scaling(2.0, 8).low_freq_factor(2.0)),
      scaled(Llama3Scaling(2.0, 8).high_freq_factor(5.0)),
      scaled(LongRopeScaling({1.0}, {2.0}, 8)),
      scaled(LongRopeScaling({1.5}, {2.0}, 8)),
      scaled(LongRopeScaling({1.0}, {2.5}, 8)),
      scaled(LongRopeScaling({1.0}, {2.0}, 9)),
      scaled(LongRopeScaling({1.0}, {2.0}, 8).attention_factor(1.5))};
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < different.size(); ++j) {
      EXPECT_EQ(different[i] == different[j], i == j) << i << ' ' << j;
    }
  }
  EXPECT_TRUE(plain() == plain().rotary_dim(D));
}

TEST(RotaryEmbedding, PrintsItselfAndClones) {
  RotaryEmbedding rotary(RotaryEmbeddingOptions(D)
                             .rotary_dim(4)
                             .pairing(RotaryPairing::interleaved)
                             .scaling(YarnScaling(2.0, 16)));
  EXPECT_EQ(printed(rotary),
            "heed::RotaryEmbedding(head_dim=8, rotary_dim=4, base=10000, pairing=interleaved, "
            "scaling=yarn(factor=2, original_length=16, beta_fast=32, beta_slow=1))");
  EXPECT_TRUE(rotary->parameters().empty());
  const auto x = uniform({B, H, L, D}, at::kFloat);
  auto clone = std::dynamic_pointer_cast<RotaryEmbeddingImpl>(rotary->clone());
  EXPECT_TRUE(is_close(clone->forward(x), rotary(x), 0.0));
}

TEST(RotaryEmbedding, RemembersAnglesAsLongAsTheyFit) {
  RotaryEmbedding rotary(D);
  const auto same = [&](int64_t first, int64_t count, at::ScalarType dtype) {
    const auto remembered = rotary->angles(first, count, dtype);
    const auto anew = rotary->angles(at::arange(first, first + count), dtype);
    return remembered.cos.scalar_type() == anew.cos.scalar_type() &&
           at::equal(remembered.cos, anew.cos) && at::equal(remembered.sin, anew.sin);
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t first : {0, 7}) {
      for (const int64_t count : {0, 1, 5}) EXPECT_TRUE(same(first, count, dtype));
    }
  }
  const auto once = rotary->angles(3, 2, at::kFloat);
  EXPECT_TRUE(once.cos.is_same(rotary->angles(3, 2, at::kBFloat16).cos));
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(rotary->angles(3, 2, at::kFloat).cos.is_inference());
  }
  // The angles of inference mode could not be saved for a backward pass.
  const auto x = at::ones({B, H, 2, D}).requires_grad_();
  rotary->rotate(x, rotary->angles(3, 2, at::kFloat)).sum().backward();
}

/// On another stream the angles may not be ready yet.
TEST(RotaryEmbedding, RemembersAnglesForOneStream) {
  const auto range = [](at::Device device, c10::StreamId stream) {
    return detail::AngleRange{3, 2, at::kFloat, c10::Stream(c10::Stream::UNSAFE, device, stream),
                              false};
  };
  const at::Device first(at::kCUDA, 0), second(at::kCUDA, 1);
  const RotaryAngles angles{at::ones({1}), at::ones({1})};
  detail::RememberedAngles remembered;
  EXPECT_FALSE(remembered.find(range(first, 7)));
  remembered.keep(range(first, 7), angles);
  EXPECT_TRUE(remembered.find(range(first, 7))->cos.is_same(angles.cos));
  EXPECT_FALSE(remembered.find(range(first, 8)));
  EXPECT_FALSE(remembered.find(range(second, 7)));
}

TEST(RotaryEmbedding, RefusesWhatHasNoMeaning) {
  const auto error = [](const RotaryEmbeddingOptions& options) {
    return value_error([&] { RotaryEmbedding{options}; });
  };
  EXPECT_EQ(error(RotaryEmbeddingOptions(0)), "RotaryEmbedding: head_dim (0) must be at least 1");
  EXPECT_EQ(error(RotaryEmbeddingOptions(7)),
            "RotaryEmbedding: rotary_dim (7) must be even, above 0 and at most head_dim (7)");
  EXPECT_EQ(error(RotaryEmbeddingOptions(8).rotary_dim(10)),
            "RotaryEmbedding: rotary_dim (10) must be even, above 0 and at most head_dim (8)");
  EXPECT_EQ(error(RotaryEmbeddingOptions(8).base(1.0)),
            "RotaryEmbedding: base (1) must be finite and above 1");
  EXPECT_EQ(error(RotaryEmbeddingOptions(8).scaling(LinearScaling(0.5))),
            "RotaryEmbedding: scaling factor (0.5) must be finite and at least 1");
  EXPECT_EQ(error(RotaryEmbeddingOptions(2).scaling(NtkScaling(2.0))),
            "RotaryEmbedding: rotary_dim (2) must be above 2 for NTK scaling");
  EXPECT_EQ(error(RotaryEmbeddingOptions(8).scaling(YarnScaling(2.0, 16).beta_fast(0.5))),
            "RotaryEmbedding: beta_fast (0.5) must be above beta_slow (1), and both above 0");
  EXPECT_EQ(
      error(RotaryEmbeddingOptions(8).scaling(Llama3Scaling(2.0, 16).high_freq_factor(1.0))),
      "RotaryEmbedding: high_freq_factor (1) must be above low_freq_factor (1), and both above 0");
  const auto longrope = [&](const std::vector<double>& factors, int64_t length) {
    return error(RotaryEmbeddingOptions(4).scaling(LongRopeScaling(factors, {1.0, 1.0}, length)));
  };
  EXPECT_EQ(longrope({1.0}, 8),
            "RotaryEmbedding: short_factors size (1) must equal half of rotary_dim (4)");
  EXPECT_EQ(longrope({1.0, 0.0}, 8),
            "RotaryEmbedding: short_factors (0) must be finite and above 0");
  EXPECT_EQ(longrope({1.0, 1.0}, 0), "RotaryEmbedding: original_length (0) must be at least 1");

  RotaryEmbedding rotary(D);
  const auto x = at::ones({B, H, L, D});
  EXPECT_ERROR("RotaryEmbedding: x must be defined", rotary(at::Tensor()));
  EXPECT_ERROR("RotaryEmbedding: count (-2) must be at least 0", rotary->angles(0, -2, at::kFloat));
  EXPECT_ERROR(
      "RotaryEmbedding: angles cos and sin must be [1 or B, 1, L, 4]; cos [1, 1, 5, 5], sin [1, 1, "
      "5, 5]",
      rotary->rotate(x, RotaryEmbedding(D + 2)->angles(0, L, at::kFloat)));
  EXPECT_ERROR("RotaryEmbedding: x rank (3) must equal 4; x [3, 5, 8]", rotary(x[0]));
  EXPECT_ERROR("RotaryEmbedding: x dim 3 (6) must equal head_dim (8); x [2, 3, 5, 6]",
               rotary(x.narrow(3, 0, 6)));
  EXPECT_ERROR("RotaryEmbedding: x dtype (Long) must be floating", rotary(x.to(at::kLong)));
  EXPECT_ERROR("RotaryEmbedding: positions dtype (Float) must be an integer",
               rotary(x, at::ones({L})));
  EXPECT_ERROR("RotaryEmbedding: x dim 2 (5) must equal the number of positions (4)",
               rotary(x, at::arange(L - 1)));
  EXPECT_ERROR("RotaryEmbedding: x dim 0 (2) must equal positions dim 0 (3)",
               rotary(x, at::arange(3 * L).view({3, L})));
  EXPECT_ERROR("RotaryEmbedding: positions rank (3) must equal 1 or 2; positions [1, 1, 5]",
               rotary(x, at::arange(L).view({1, 1, L})));
}

}  // namespace
}  // namespace heed::test::rotary_embedding
