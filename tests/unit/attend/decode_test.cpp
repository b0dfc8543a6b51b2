// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/forced_path.h"
#include "cpu/block/block.h"
#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/reference.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Runs `body` on each instruction set of this machine.
template <typename Body>
void for_each_instruction_set(Body&& body) {
  for (const auto* set : detail::instruction_sets()) {
    SCOPED_TRACE(set->name);
    const detail::ScopedInstructionSet in_force(*set);
    body();
  }
}

at::Tensor decode(const Inputs& inputs, const AttendOptions& options = {}) {
  EXPECT_EQ(attend_path(inputs, options), AttendPath::decode);
  return attend(inputs, options);
}

at::Tensor expected(const Inputs& inputs, const AttendOptions& options = {}) {
  return reference(inputs, options).output;
}

/// |values| <= 1. Scores, weights and sums are float32; the output is rounded once.
double tolerance(at::ScalarType dtype) {
  return (dtype == at::kFloat ? 16 : 1) * unit_roundoff(dtype);
}

struct Variant {
  const char* name;
  std::function<AttendOptions(const Sizes&)> options;
};

const std::vector<Variant> kVariants = {
    {"plain", [](const Sizes&) { return AttendOptions(); }},
    {"causal, scale", [](const Sizes&) { return AttendOptions().causal(true).scale(0.7); }},
    {"causal, window 70", [](const Sizes&) { return AttendOptions().causal(true).window(70); }},
    {"window 3", [](const Sizes&) { return AttendOptions().window(3); }},
    {"mask [L, S], causal",
     [](const Sizes& s) {
       return AttendOptions().mask(random_mask({s.L, s.S})).causal(true);
     }},
    {"padding, one sequence empty",
     [](const Sizes& s) {
       return AttendOptions().mask(padding_mask(at::tensor({s.S / 2, int64_t{0}}), s.S));
     }},
    {"mask and bias [B, H, L, S], window 100",
     [](const Sizes& s) {
       return AttendOptions()
           .mask(random_mask({s.B, s.H, s.L, s.S}))
           .bias(uniform({s.B, s.H, s.L, s.S}, at::kDouble))
           .window(100);
     }},
    {"bias [1, H, 1, S] transposed",
     [](const Sizes& s) {
       return AttendOptions().bias(uniform({1, s.S, 1, s.H}, at::kFloat).transpose(1, 3));
     }},
};

class Decode : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  Decode() { torch::manual_seed(moved(1)); }
  const at::NoGradGuard no_grad_;
};

INSTANTIATE_TEST_SUITE_P(Dtypes, Decode, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         kNamed);

/// {MHA, GQA, MQA} x S at the edges of tiles, blocks and work items x L x what restricts the keys.
TEST_P(Decode, EqualsTheReference) {
  for (const int64_t groups : {8, 4, 1}) {
    for (const int64_t S : {1, 3, 16, 63, 64, 65, 127, 129, 331, 1031}) {
      for (const auto& variant : kVariants) {
        Sizes s{2, 8, groups, 5, 5, 8, 8};
        const int64_t most_rows = S < 1024 ? 8 : 16;
        s.L = 1 + S % (most_rows * groups / s.H);
        s.S = S;
        s.D = 16;
        s.Dv = 24;
        const auto inputs = make_inputs(s, GetParam());
        const auto options = variant.options(s);
        const auto output = expected(inputs, options);
        const auto rows = s.H / s.G * s.L;
        for_each_instruction_set([&] {
          std::optional<detail::ScopedPath> in_force;
          if (rows > 8 && detail::multiplies_pairs(GetParam())) {
            in_force.emplace(AttendPath::decode);  // attend leaves these to blocks
          }
          EXPECT_TRUE(is_close(decode(inputs, options), output, tolerance(GetParam())))
              << "G " << groups << ", L " << s.L << ", S " << S << ", " << variant.name;
        });
      }
    }
  }
}

TEST_P(Decode, TakesManyRowsOfALoneGroup) {
  Sizes s{1, 4, 1, 5, 1031, 8, 8};
  for (const auto& [heads, length] : {std::pair<int64_t, int64_t>{32, 1}, {8, 4}, {23, 1}}) {
    s.H = heads;
    s.L = length;
    const auto inputs = make_inputs(s, GetParam());
    const auto options = AttendOptions().causal(true);
    const auto output = expected(inputs, options);
    for_each_instruction_set([&] {
      EXPECT_TRUE(is_close(decode(inputs, options), output, tolerance(GetParam())))
          << "H " << s.H << ", L " << s.L;
    });
  }
}

/// Head dims that are whole vectors, odd multiples of one and neither.
TEST_P(Decode, TakesAnyHeadDim) {
  for (const int64_t D : {1, 5, 16, 33, 64, 71, 80, 128, 192, 256}) {
    for (const int64_t heads : {1, 2, 3, 5, 8}) {
      const Sizes s{2, heads, 1, 1, 70, D, 257 - D};
      const auto inputs = make_inputs(s, GetParam());
      const auto output = expected(inputs);
      for_each_instruction_set([&] {
        EXPECT_TRUE(is_close(decode(inputs), output, tolerance(GetParam())))
            << "D " << D << ", H " << heads;
      });
    }
  }
}

/// Caches as they are kept: tokens or heads first, longer than what is in use, shared by a batch.
TEST_P(Decode, TakesAnyStridesButTheLast) {
  const Sizes s{2, 4, 2, 2, 300, 32, 32};
  const auto inputs = make_inputs(s, GetParam());
  const auto longer = [](const at::Tensor& t) {
    return at::cat({t, at::full_like(t, kInfinity)}, 2).narrow(2, 0, t.size(2));
  };
  const auto every_second = [](const at::Tensor& t) {
    return at::stack({t, at::full_like(t, kInfinity)}, 3).flatten(2, 3).slice(2, 0, {}, 2);
  };
  const auto first_of_batch = [](const at::Tensor& t) {
    return t.narrow(0, 0, 1).expand(t.sizes());
  };
  const auto contiguous = [](const at::Tensor& t) { return t.contiguous(); };
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> layouts = {
      contiguous, longer, every_second, first_of_batch};
  for (size_t n = 0; n < layouts.size(); ++n) {
    const Inputs changed = {inputs.query.transpose(2, 3).contiguous().transpose(2, 3),
                            layouts[n](inputs.key), layouts[n](inputs.value)};
    const auto output = expected(changed);
    for_each_instruction_set([&] {
      EXPECT_TRUE(is_close(decode(changed), output, tolerance(GetParam()))) << "layout " << n;
    });
  }
}

/// A hidden key and its value change nothing, not a bit.
TEST_P(Decode, LeaksNoHiddenToken) {
  const Sizes s{2, 4, 2, 3, 200, 8, 8};
  const auto inputs = make_inputs(s, GetParam());
  const auto mask = random_mask({s.L, s.S});
  const auto options = AttendOptions().mask(mask).causal(true).window(150);
  for_each_instruction_set([&] {
    const auto before = decode(inputs, options);
    for (int64_t j = 0; j < s.S; j += 7) {
      auto changed = inputs;
      changed.key = inputs.key.clone();
      changed.value = inputs.value.clone();
      changed.key.select(2, j).fill_(100.0);
      changed.value.select(2, j).fill_(100.0);
      const auto after = decode(changed, options);
      for (int64_t i = 0; i < s.L; ++i) {
        const auto position = i + s.S - s.L;
        const bool sees =
            mask[i][j].item<bool>() && j <= position && j > position - *options.window();
        EXPECT_EQ(before.select(2, i).equal(after.select(2, i)), !sees)
            << "query " << i << ", key " << j;
      }
    }
  });
}

/// Keys are split by shapes and what is seen alone.
TEST_P(Decode, IsTheSameForAnyNumberOfThreads) {
  const auto threads = at::get_num_threads();
  for (const int64_t groups : {8, 1}) {
    for (const bool tokens_first : {false, true}) {
      const Sizes s{2, 8, groups, 1, 5000, 8, 8};
      auto inputs = make_inputs(s, GetParam());
      if (!tokens_first) inputs.key = inputs.key.contiguous();
      at::set_num_threads(1);
      const auto alone = decode(inputs);
      for (const int n : {2, 5}) {
        at::set_num_threads(n);
        EXPECT_TRUE(decode(inputs).equal(alone)) << n << " threads, G " << groups;
      }
      EXPECT_TRUE(is_close(alone, expected(inputs), tolerance(GetParam())));
    }
  }
  at::set_num_threads(threads);
}

/// Keys at either end that no query sees are in no run: of all, of some or of none of the
/// sequences.
TEST_P(Decode, SplitsKeysThatAreSeen) {
  const Sizes s{4, 8, 4, 2, 3000, 8, 8};
  const auto inputs = make_inputs(s, GetParam());
  const auto key = at::arange(s.S);
  const auto seen = [&](int64_t first, int64_t last) {
    return (key >= first).logical_and(key < last);
  };
  const auto scattered = seen(100, 2900).logical_and(key.remainder(3) == 0);
  const std::vector<at::Tensor> masks = {
      at::stack({seen(0, 70), seen(2900, 2931), seen(5, 5), scattered}).view({4, 1, 1, s.S}),
      at::stack({seen(0, 70), seen(400, 2000)}).view({1, 1, 2, s.S}),
      at::stack({seen(0, 1), seen(9, 9), seen(64, 128), seen(0, 3000), seen(70, 80), scattered,
                 seen(1000, 1500), seen(2999, 3000)})
          .view({1, 8, 1, s.S}),
      seen(7, 7).view({1, 1, 1, s.S}),
  };
  const auto documents = at::stack({key / 900, key / 10, key * 0, key / 2999}).to(at::kLong);
  const auto of_queries = documents.narrow(1, 1900, 2);
  std::vector<AttendOptions> all = {AttendOptions().documents(of_queries).key_documents(documents)};
  for (const auto& mask : masks) all.push_back(AttendOptions().mask(mask));
  const auto threads = at::get_num_threads();
  for (const auto& options : all) {
    const auto output = expected(inputs, options);
    for_each_instruction_set([&] {
      at::set_num_threads(1);
      const auto alone = decode(inputs, options);
      EXPECT_TRUE(is_close(alone, output, tolerance(GetParam())));
      at::set_num_threads(5);
      EXPECT_TRUE(decode(inputs, options).equal(alone));
    });
  }
  at::set_num_threads(threads);
}

/// Scores far apart, in either order, neither overflow nor lose the largest.
TEST_P(Decode, TakesLargeScores) {
  const Sizes s{2, 4, 4, 1, 300, 8, 8};
  auto inputs = make_inputs(s, GetParam());
  for (const double sign : {1.0, -1.0}) {
    const auto bias = (at::arange(s.S) * (sign * 1000.0)).view({1, s.S});
    const auto options = AttendOptions().bias(bias);
    const auto output = expected(inputs, options);
    for_each_instruction_set(
        [&] { EXPECT_TRUE(is_close(decode(inputs, options), output, tolerance(GetParam()))); });
  }
}

TEST_P(Decode, PassesOnNaN) {
  const Sizes s{1, 1, 1, 1, 300, 8, 8};
  for (const int64_t j : {0, 70, 299}) {
    auto inputs = make_inputs(s, GetParam());
    inputs.key.select(2, j).fill_(std::numeric_limits<double>::quiet_NaN());
    for_each_instruction_set([&] { EXPECT_TRUE(decode(inputs).isnan().all().item<bool>()) << j; });
  }
}

TEST(DecodePath, IsForInferenceWithFewRowsAGroup) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  Sizes s{2, 8, 2, 2, 5, 8, 8};
  auto inputs = make_inputs(s, at::kFloat);
  EXPECT_EQ(attend_path(inputs), AttendPath::decode);
  EXPECT_EQ(attend_path(inputs, AttendOptions().causal(true).window(2)), AttendPath::decode);
  EXPECT_NE(attend_path(inputs, AttendOptions().dropout(0.1)), AttendPath::decode);
  EXPECT_NE(attend_path(make_inputs(s, at::kDouble)), AttendPath::decode);

  const auto not_unit_stride = [](const at::Tensor& t) {
    return t.transpose(2, 3).contiguous().transpose(2, 3);
  };
  EXPECT_EQ(attend_path({not_unit_stride(inputs.query), inputs.key, inputs.value}),
            AttendPath::decode);
  EXPECT_NE(attend_path({inputs.query, not_unit_stride(inputs.key), inputs.value}),
            AttendPath::decode);
  EXPECT_NE(attend_path({inputs.query, inputs.key, not_unit_stride(inputs.value)}),
            AttendPath::decode);

  inputs.value.requires_grad_();
  EXPECT_NE(attend_path(inputs), AttendPath::decode);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(attend_path(inputs), AttendPath::decode);

  s.L = 3;  // 12 rows: only where there are many keys
  EXPECT_NE(attend_path(make_inputs(s, at::kFloat)), AttendPath::decode);
  s.S = 1024;
  EXPECT_EQ(attend_path(make_inputs(s, at::kFloat)), AttendPath::decode);
  EXPECT_EQ(attend_path(make_inputs(s, at::kBFloat16)),
            detail::multiplies_pairs(at::kBFloat16) ? AttendPath::block : AttendPath::decode);
  s.L = 5;
  EXPECT_NE(attend_path(make_inputs(s, at::kFloat)), AttendPath::decode);

  s.B = s.G = s.L = 1;  // a lone group
  s.H = 32;
  EXPECT_EQ(attend_path(make_inputs(s, at::kBFloat16)), AttendPath::decode);
  s.H = 33;
  EXPECT_NE(attend_path(make_inputs(s, at::kFloat)), AttendPath::decode);
  s.H = 32;
  s.B = 2;
  EXPECT_NE(attend_path(make_inputs(s, at::kFloat)), AttendPath::decode);
}

/// The mean of a million values, exact in no float32 sum of them; with as many sequences as keep
/// all threads busy without a split of the keys.
TEST(Decode, SumsManyKeysInParts) {
  torch::manual_seed(moved(1));
  constexpr int64_t kSequences = 128;
  for (const int64_t S : {131'072, 1'000'003}) {
    const auto value = at::rand({1, 1, S, 4});
    const auto key = at::zeros({1, 1, 1, 4}).expand({kSequences, 1, S, 4});
    const auto output =
        decode({at::zeros({kSequences, 1, 1, 4}), key, value.expand({kSequences, 1, S, 4})});
    const auto mean = value.to(at::kDouble).mean(2, /*keepdim=*/true);
    EXPECT_TRUE(is_close(output, mean.expand(output.sizes()), tolerance(at::kFloat))) << S;
  }
}

/// One key is no reason to keep anything of it but the result.
TEST(Decode, NeedsNoMemoryForManySequences) {
  const int64_t B = 4096, G = 8, D = 16;
  const auto query = at::rand({B, G, 1, D}), key = at::rand({B, G, 1, D});
  const AllocationCounter counter;
  const auto output = decode({query, key, key});
  EXPECT_TRUE(output.equal(key));
  EXPECT_LT(counter.peak(), static_cast<int64_t>(output.nbytes()) + 64 * 1024);
}

}  // namespace
}  // namespace heed::test
