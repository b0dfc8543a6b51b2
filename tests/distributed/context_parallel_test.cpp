// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/autocast.h>
#include <heed/distributed/context_parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "distributed/processes.h"
#include "distributed/sequence_shards.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_context {
namespace {

using distributed::ring_attend;
using distributed::shard_sequence;
using distributed::ulysses_attend;
using distributed::unshard_sequence;

using Attend = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        const ProcessGroup&, const AttendOptions&)>;

struct Case {
  Sizes sizes;
  AttendOptions options;  // of the whole sequences
  bool documents = false;
};

/// Options of all kinds, alone and together.
class Cases {
 public:
  Cases(int64_t processes, uint32_t seed)
      : processes_(processes), random_(static_cast<uint32_t>(moved(seed))) {}

  Case next(bool by_heads) {
    Case c;
    auto& s = c.sizes;
    s.B = 1 + pick(2);
    s.G = 1 + pick(4);
    s.H = (by_heads ? std::lcm(s.G, processes_) : s.G) * (1 + pick(by_heads ? 2 : 3));
    s.L = 2 * processes_ * (1 + pick(4));
    s.S = pick(3) == 0 ? 2 * processes_ * (1 + pick(4)) : s.L;
    s.D = 1 + pick(9);
    s.Dv = 1 + pick(9);
    auto& o = c.options;
    set_positions(o, s);
    if (pick(4) == 0) o.scale(0.1 * static_cast<double>(1 + pick(20)));
    if (pick(4) == 0) o.softcap(0.5 + static_cast<double>(pick(3)));
    if (pick(4) == 0) o.sinks(uniform({s.H}, at::kDouble));
    const auto or_one = [&](int64_t size) { return pick(2) == 0 ? size : int64_t{1}; };
    const auto shape_of_scores = [&]() -> std::vector<int64_t> {
      const auto rank = 2 + pick(3);
      if (rank == 2) return {s.L, s.S};
      if (rank == 3) return {or_one(s.B), or_one(s.L), s.S};
      return {or_one(s.B), or_one(s.H), or_one(s.L), s.S};
    };
    if (pick(4) == 0) o.mask(random_mask(shape_of_scores()));
    if (pick(4) == 0) o.bias(uniform(shape_of_scores(), at::kDouble));
    c.documents = pick(4) == 0;
    return c;
  }

 private:
  /// Options that depend on how far a key is from a query.
  void set_positions(AttendOptions& o, const Sizes& s) {
    o.causal(pick(2) == 0).top_left(pick(4) == 0);
    switch (pick(4)) {
      case 0:
        o.window(1 + pick(s.S));
        break;
      case 1:
        if (pick(3) > 0) o.left_window(pick(s.S));
        if (pick(3) > 0) o.right_window(pick(s.S));
        break;
      default:
        break;
    }
    if (pick(4) == 0) {
      const std::vector<int64_t> shapes[] = {{s.H}, {s.B, s.H}};
      o.alibi_slopes(uniform(shapes[pick(2)], at::kDouble).abs());
    }
    if (pick(4) == 0) o.relative_bias(uniform({s.H, 2 * pick(7) + 1}, at::kDouble));
  }

  int64_t pick(int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(random_);
  }
  int64_t processes_;
  std::mt19937 random_;
};

/// The rows of this process's queries.
at::Tensor own_rows(const at::Tensor& scores, const ProcessGroup& group) {
  return scores.size(-2) == 1 ? scores : shard_sequence(scores, -2, group);
}

/// Every third token begins a document.
at::Tensor documents_of(int64_t length) {
  return at::floor_divide(at::arange(length, at::kLong), 3);
}

/// The options with nothing but a mask and a bias, [B or 1, H, L, S], for all that depends on
/// positions and documents. The bias has the graph of `bias`, `slopes` and `relative`, which may be
/// undefined.
AttendOptions by_mask_and_bias(const Case& c, const at::Tensor& bias, const at::Tensor& slopes,
                               const at::Tensor& relative) {
  const auto& s = c.sizes;
  const auto& o = c.options;
  const auto ahead =
      at::arange(s.S) - at::arange(s.L).unsqueeze(1) - (o.top_left() ? 0 : s.S - s.L);
  auto seen = at::ones({s.L, s.S}, at::kBool);
  const auto limit = [&](int64_t left, int64_t right) {
    seen = seen.logical_and(ahead.ge(-left)).logical_and(ahead.le(right));
  };
  constexpr int64_t kFar = 1 << 30;
  if (o.causal()) limit(kFar, 0);
  if (o.window()) limit(*o.window() - 1, *o.window() - 1);
  limit(o.left_window().value_or(kFar), o.right_window().value_or(kFar));
  if (c.documents) {
    seen = seen.logical_and(documents_of(s.L).unsqueeze(1).eq(documents_of(s.S)));
  }
  auto scores = at::zeros({s.B, s.H, s.L, s.S}, at::kDouble);
  if (bias.defined()) scores = scores + four_dimensional(bias);
  if (slopes.defined()) {
    scores = scores - slopes.view({-1, s.H, 1, 1}) * ahead.abs();
  }
  if (relative.defined()) {
    const auto reach = relative.size(1) / 2;
    const auto entries = (ahead.clamp(-reach, reach) + reach).flatten();
    scores = scores + relative.index_select(1, entries).view({1, s.H, s.L, s.S});
  }
  AttendOptions plain;
  plain.mask(o.mask() ? four_dimensional(o.mask()).logical_and(seen) : seen).bias(scores);
  plain.scale(o.scale()).softcap(o.softcap()).sinks(o.sinks());
  return plain;
}

/// An input of this process, and the gradient that it should have.
struct Expected {
  at::Tensor leaf, gradient;
  bool is_summed;  // whether the gradient is the sum over the processes
  double factor;   // of the tolerance, as many numbers are summed
};

/// Adds bias, slopes, relative bias and sinks of this process to its options, and to what is
/// expected. `bias_gradient` is that of the scores' bias, which `plain` has.
void add_expected(std::vector<Expected>& expected, AttendOptions& own, const AttendOptions& plain,
                  const ReferenceResult& whole, const std::vector<at::Tensor>& leaves,
                  at::ScalarType dtype, const ProcessGroup& group) {
  const auto gradient_of = [&](const at::Tensor& leaf) {
    return torch::autograd::grad({*plain.bias()}, {leaf}, {whole.bias_grad},
                                 /*retain_graph=*/true)[0];
  };
  const auto add = [&](std::optional<at::Tensor>& option, const at::Tensor& value,
                       const at::Tensor& gradient, bool is_summed, double factor) {
    option = value.detach().to(dtype).clone().requires_grad_();
    expected.push_back({*option, gradient, is_summed, factor});
  };
  const auto &bias = leaves[0], &slopes = leaves[1], &relative = leaves[2];
  const auto distances = static_cast<double>(plain.bias()->size(2) + plain.bias()->size(3));
  if (bias.defined()) {
    const auto gradient = own_rows(gradient_of(bias), group);
    add(own.bias(), own_rows(bias, group), gradient, bias.size(-2) == 1, 1);
  }
  if (slopes.defined()) add(own.alibi_slopes(), slopes, gradient_of(slopes), true, distances);
  if (relative.defined()) add(own.relative_bias(), relative, gradient_of(relative), true, 8);
  if (own.sinks()) {
    const auto sinks = *own.sinks();
    add(own.sinks(), sinks, whole.sinks_grad, true, 1);
  }
}

/// Compares output and gradients of this process with its share of the reference's.
void expect_share_of_reference(const Case& c, const Attend& attend, at::ScalarType dtype,
                               const ProcessGroup& group) {
  const auto& s = c.sizes;
  const auto computed_in = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto inputs = make_inputs(s, dtype);
  const auto output_gradient = uniform({s.B, s.H, s.L, s.Dv}, dtype);
  std::vector<at::Tensor>
      leaves;  // bias, slopes and relative bias, rounded as the process has them
  for (const auto* option :
       {&c.options.bias(), &c.options.alibi_slopes(), &c.options.relative_bias()}) {
    leaves.push_back(*option ? (*option)->to(computed_in).to(at::kDouble).requires_grad_()
                             : at::Tensor());
  }
  auto own = c.options;
  if (own.sinks()) own.sinks(own.sinks()->to(computed_in));
  auto plain = by_mask_and_bias(c, leaves[0], leaves[1], leaves[2]);
  plain.sinks(own.sinks());
  const auto whole = reference(inputs, plain, output_gradient);

  const auto share = [&](const at::Tensor& x) { return shard_sequence(x, 2, group); };
  const auto query = share(inputs.query).requires_grad_(), key = share(inputs.key).requires_grad_(),
             value = share(inputs.value).requires_grad_();
  std::vector<Expected> expected = {{query, share(whole.query_grad), false, 1},
                                    {key, share(whole.key_grad), false, 1},
                                    {value, share(whole.value_grad), false, 1}};
  add_expected(expected, own, plain, whole, leaves, computed_in, group);
  if (own.mask()) own.mask(own_rows(*own.mask(), group));
  if (c.documents) {
    own.documents(shard_sequence(documents_of(s.L), 0, group));
    if (s.L != s.S) own.key_documents(shard_sequence(documents_of(s.S), 0, group));
  }
  const auto output = attend(query, key, value, group, own);
  ASSERT_EQ(output.scalar_type(), dtype);
  // Sums of up to 32 products, parts of which are joined by a few operations more.
  const double roundoff = unit_roundoff(dtype);
  EXPECT_TRUE(is_close(output, share(whole.output), 64 * roundoff));
  const auto found =
      torch::autograd::grad({output}, c10::fmap(expected, [](const Expected& e) { return e.leaf; }),
                            {share(output_gradient)});
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& e = expected[i];
    EXPECT_EQ(found[i].scalar_type(), e.leaf.scalar_type());
    const auto sum = e.is_summed ? sum_over_processes(found[i], group) : found[i];
    EXPECT_TRUE(is_close(sum, e.gradient, 512 * e.factor * roundoff)) << "gradient " << i;
  }
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(is_close(attend(query, key, value, group, own), share(whole.output), 64 * roundoff));
}

void expect_reference(int64_t processes, const Attend& attend, bool by_heads, int64_t count) {
  in_processes(processes, [&](const ProcessGroup& group) {
    torch::manual_seed(moved(1));
    Cases cases(processes, 7);
    for (int64_t i = 0; i < count; ++i) {
      const auto c = cases.next(by_heads);
      SCOPED_TRACE("case " + std::to_string(i));
      const auto dtype = i % 4 == 3 ? at::kFloat : i % 8 == 5 ? at::kBFloat16 : at::kDouble;
      ASSERT_NO_FATAL_FAILURE(expect_share_of_reference(c, attend, dtype, group));
      if (testing::Test::HasFailure()) return;
    }
  });
}

class RingAttend : public testing::TestWithParam<int64_t> {};

TEST_P(RingAttend, IsAttentionToTheWholeSequence) {
  expect_reference(GetParam(), ring_attend, /*by_heads=*/false, 300);
}

TEST_P(RingAttend, IsTheSameByHeads) {
  expect_reference(GetParam(), ulysses_attend, /*by_heads=*/true, 120);
}

INSTANTIATE_TEST_SUITE_P(Processes, RingAttend, testing::Values(1, 2, 3, 4),
                         [](const auto& p) { return std::to_string(p.param); });

TEST(ContextParallel, DropsTheWeightsThatOneProcessDrops) {
  for (const auto& attend_shares : {Attend(ring_attend), Attend(ulysses_attend)}) {
    in_processes(2, [&](const ProcessGroup& group) {
      torch::manual_seed(moved(3));
      Sizes s;
      s.L = s.S = 44;  // chunks of 11 keys, no multiple of what is drawn together
      const auto inputs = make_inputs(s, at::kDouble);
      for (auto* x : {&inputs.query, &inputs.key, &inputs.value}) x->requires_grad_();
      const auto options = AttendOptions().dropout(0.4).causal(true);
      const auto gradient = uniform({s.B, s.H, s.L, s.Dv}, at::kDouble);
      torch::manual_seed(moved(4));
      const auto output = attend(inputs, options);
      const auto expected =
          torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {gradient});
      const auto share = [&](const at::Tensor& x) {
        return shard_sequence(x.detach(), 2, group).requires_grad_();
      };
      const auto query = share(inputs.query), key = share(inputs.key), value = share(inputs.value);
      torch::manual_seed(moved(4));
      const auto own = attend_shares(query, key, value, group, options);
      EXPECT_TRUE(is_close(own, share(output), 1e-14));
      const auto found = torch::autograd::grad({own}, {query, key, value}, {share(gradient)});
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_close(found[i], share(expected[i]), 1e-13));
    });
  }
}

/// One key/value head for all processes, and heads that two processes share in unequal parts.
TEST(ContextParallel, SharesAHeadAmongProcesses) {
  const auto expect = [](int64_t processes, int64_t heads, int64_t groups) {
    in_processes(processes, [&](const ProcessGroup& group) {
      torch::manual_seed(moved(5));
      Case c;
      c.sizes.H = heads;
      c.sizes.G = groups;
      c.sizes.L = c.sizes.S = 4 * processes;
      c.options.causal(true);
      expect_share_of_reference(c, ulysses_attend, at::kDouble, group);
    });
  };
  expect(2, 2, 1);
  expect(3, 6, 2);
  expect(4, 4, 1);
  expect(4, 8, 2);
  expect(4, 12, 6);
}

/// Gradients of what all processes have, where nothing else requires grad.
TEST(ContextParallel, DifferentiatesSlopesAndRelativeBiasAlone) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(6));
    const auto inputs = make_inputs({2, 4, 2, 8, 8, 5, 5}, at::kDouble);
    const auto share = [&](const at::Tensor& x) { return shard_sequence(x, 2, group); };
    const auto slopes = uniform({2, 4}, at::kDouble).requires_grad_();
    const auto relative = uniform({4, 5}, at::kDouble).requires_grad_();
    for (const auto& leaf : {slopes, relative}) {
      const auto options = leaf.is_same(slopes) ? AttendOptions().alibi_slopes(leaf)
                                                : AttendOptions().relative_bias(leaf);
      const auto whole = attend(inputs, options);
      const auto expected = torch::autograd::grad({whole.square().sum()}, {leaf})[0];
      for (const auto& attend_shares : {Attend(ring_attend), Attend(ulysses_attend)}) {
        const auto own = attend_shares(share(inputs.query), share(inputs.key), share(inputs.value),
                                       group, options);
        const auto found = torch::autograd::grad({own.square().sum()}, {leaf})[0];
        EXPECT_TRUE(is_close(sum_over_processes(found, group), expected, 1e-13));
      }
    }
  });
}

/// A chunk is seen if any of its keys is.
TEST(ContextParallel, SeesAChunkWhereAQuerySeesAKey) {
  using distributed::detail::SequenceShards;
  using distributed::detail::Visibility;
  constexpr int64_t kProcesses = 2, kFar = std::numeric_limits<int64_t>::max();
  const std::optional<int64_t> windows[] = {std::nullopt, 0, 1, 3, kFar};
  const auto sees = [&](const Visibility& v, int64_t query_rank, int64_t m, int64_t key_rank,
                        int64_t n) {
    for (int64_t i = 0; i < v.queries.chunk_length(); ++i) {
      const auto p =
          v.queries.first(query_rank, m) + i + (v.top_left ? 0 : v.keys.length - v.queries.length);
      for (int64_t k = 0; k < v.keys.chunk_length(); ++k) {
        const auto j = v.keys.first(key_rank, n) + k;
        if (p - j <= v.left.value_or(kFar) && j - p <= v.right.value_or(kFar)) return true;
      }
    }
    return false;
  };
  for (const int64_t queries : {4, 8, 12}) {
    for (const int64_t keys : {0, 4, 8, 12}) {
      for (int64_t i = 0; i < 25 * 2; ++i) {
        const Visibility v{
            {kProcesses, queries}, {kProcesses, keys}, windows[i % 5], windows[i / 5 % 5], i >= 25};
        for (int64_t place = 0; place < 16; ++place) {
          const auto a = place & 1, m = place >> 1 & 1, b = place >> 2 & 1, n = place >> 3;
          EXPECT_EQ(v.sees(a, m, b, n), sees(v, a, m, b, n))
              << queries << " queries, " << keys << " keys, options " << i << ", place " << place;
        }
      }
    }
  }
}

TEST(ContextParallel, ShardsAndUnshards) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = at::arange(16, at::kDouble).view({2, 8}).requires_grad_();
    const auto own = shard_sequence(x, -1, group);
    const std::vector<int64_t> columns =
        group->getRank() == 0 ? std::vector<int64_t>{0, 1, 6, 7} : std::vector<int64_t>{2, 3, 4, 5};
    EXPECT_TRUE(own.equal(x.index_select(1, at::tensor(columns))));
    const auto whole = unshard_sequence(own, 1, group);
    EXPECT_TRUE(whole.equal(x));
    whole.square().sum().backward();
    // Both processes use the whole.
    const auto expected = at::zeros_like(x).index_copy(1, at::tensor(columns), 4 * own.detach());
    EXPECT_TRUE(x.grad().equal(expected));
  });
}

/// A change to tensors that the backward pass reads again ends in an error of autograd's, and in no
/// wrong number.
TEST(ContextParallel, NoticesWhatChangesBeforeTheBackwardPass) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(10));
    const auto x = uniform({2, 2, 4, 8}, at::kFloat).requires_grad_();
    const auto mask = random_mask({4, 8});
    const auto documents = at::zeros({4}, at::kLong);
    const auto slopes = uniform({2}, at::kFloat);
    for (const auto& changed : {mask, documents, slopes}) {
      const auto options = AttendOptions().mask(mask).documents(documents).alibi_slopes(slopes);
      const auto output = ring_attend(x, x, x, group, options).sum();
      changed.zero_();
      EXPECT_THAT(error_text<c10::Error>([&] { output.backward(); }),
                  testing::HasSubstr("modified by an inplace operation"));
    }
  });
}

/// As `attend`: shares travel in autocast's dtype.
TEST(ContextParallel, ConvertsUnderAutocast) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(9));
    for (const Attend& shared_attend : {Attend(ring_attend), Attend(ulysses_attend)}) {
      const auto x = uniform({2, 4, 8, 8}, at::kFloat);
      const auto share = shard_sequence(x, 2, group).requires_grad_();
      const auto low = share.detach().to(at::kHalf).requires_grad_();
      const auto options = AttendOptions().causal(true);
      const auto expected = shared_attend(low, low, low, group, options);
      const auto output = [&] {
        const Autocast autocast(at::kCPU, at::kHalf);
        return shared_attend(share, share, share, group, options);
      }();
      EXPECT_EQ(output.scalar_type(), at::kHalf);
      EXPECT_TRUE(output.equal(expected));
      const auto gradient = torch::autograd::grad({output.sum()}, {share})[0];
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      // The gradient of three uses: added in float32 here, and rounded to float16 there.
      EXPECT_TRUE(is_close(gradient, torch::autograd::grad({expected.sum()}, {low})[0],
                           8 * unit_roundoff(at::kHalf)));
    }
  });
}

}  // namespace
}  // namespace heed::test::of_context
