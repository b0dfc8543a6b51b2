// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/differential_attention.h>
#include <heed/group_query_attention.h>
#include <heed/kv_cache.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/paged_kv_cache.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

/// Frequencies that depend on the length of a sequence.

namespace heed::test::of_length_scaling {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t E = 48, H = 6, D = 8, kTrained = 8;
const std::vector<double> kShort = {1.0, 1.5, 2.0, 4.0}, kLong = {2.0, 3.0, 5.0, 9.0};

RotaryEmbeddingOptions longrope() {
  return RotaryEmbeddingOptions(D).scaling(
      LongRopeScaling(kShort, kLong, kTrained).attention_factor(1.25));
}

RotaryEmbeddingOptions dynamic_ntk() {
  return RotaryEmbeddingOptions(D).scaling(NtkScaling(3.0).original_length(kTrained));
}

/// This scaling for a sequence of this length: its frequencies depend on nothing.
RotaryEmbeddingOptions at_length(RotaryEmbeddingOptions options, int64_t length) {
  const auto& scaling = *options.scaling();
  if (const auto* ntk = std::get_if<NtkScaling>(&scaling)) {
    const auto share = static_cast<double>(std::max(length, kTrained)) / kTrained;
    return options.scaling(NtkScaling(ntk->factor() * share - (ntk->factor() - 1.0)));
  }
  auto own = std::get<LongRopeScaling>(scaling);
  const auto factors = length > kTrained ? kLong : kShort;
  return options.scaling(own.short_factors(factors).long_factors(factors));
}

/// An attention with a rotary embedding.
struct Subject {
  std::string name;
  std::function<at::Tensor(const at::Tensor& x)> alone;  // [L, E], with the options of its length
  std::function<at::Tensor(const at::Tensor&, KVCache&, const Numbers&)> forward_cached;
  std::function<at::Tensor(const at::Tensor&, PagedStep&)> forward_step;
  std::function<KVCache(int64_t batch, const CacheOptions&)> make_cache;
  std::function<PagedKVCache()> make_pages;
};

template <typename Make>
Subject subject(const std::string& name, const RotaryEmbeddingOptions& rotary, at::Device device,
                const Make& make) {
  auto module = make(rotary);
  module->to(device, at::kDouble);
  const auto alone = [=](const at::Tensor& x) {
    auto own = make(at_length(rotary, x.size(0)));
    own->to(device, at::kDouble);
    const auto parameters = module->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) own->parameters()[i].copy_(parameters[i]);
    own->eval();
    return own->forward(x.unsqueeze(0)).squeeze(0);
  };
  module->eval();
  return {name,
          alone,
          [module](const at::Tensor& x, KVCache& cache, const Numbers& counts) {
            return module->forward_cached(x, cache, counts);
          },
          [module](const at::Tensor& x, PagedStep& step) {
            return module->forward_cached(x.unsqueeze(0), step).squeeze(0);
          },
          [module](int64_t batch, const CacheOptions& options) {
            return module->make_cache(batch, 40, options);
          },
          [module] { return module->make_paged_cache(20, PagedCacheOptions().page_size(16)); }};
}

std::vector<Subject> subjects(at::Device device) {
  std::vector<Subject> all;
  for (const auto& [kind, rotary] :
       {std::pair{"longrope, ", longrope()}, std::pair{"dynamic, ", dynamic_ntk()}}) {
    const auto add = [&, kind = std::string(kind), rotary = rotary](const char* name,
                                                                    const auto& make) {
      all.push_back(subject(kind + name, rotary, device, make));
    };
    add("GroupQueryAttention", [](const RotaryEmbeddingOptions& rotary) {
      return GroupQueryAttention(GroupQueryAttentionOptions(E, H, 1).causal(true).rotary(rotary));
    });
    add("MultiHeadAttention", [](const RotaryEmbeddingOptions& rotary) {
      return MultiHeadAttention(
          MultiHeadAttentionOptions(E, H).dropout(0).causal(true).rotary(rotary));
    });
    add("LatentAttention", [](const RotaryEmbeddingOptions& rotary) {
      return LatentAttention(
          LatentAttentionOptions(E, H, 8).rotary_head_dim(D).causal(true).rotary(rotary));
    });
    add("DifferentialAttention", [](const RotaryEmbeddingOptions& rotary) {
      return DifferentialAttention(
          DifferentialAttentionOptions(E, H / 2).causal(true).rotary(rotary));
    });
  }
  return all;
}

/// Relative to the largest value: products of some hundred numbers, summed in another order.
::testing::AssertionResult is_alike(const at::Tensor& actual, const at::Tensor& expected) {
  return is_close(actual, expected, 1e-12 * expected.abs().max().item<double>());
}

at::TensorOptions doubles(at::Device device = at::kCPU) {
  return at::device(device).dtype(at::kDouble);
}

class LengthScaling : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(moved(3)); }

  at::NoGradGuard no_grad_;
};

TEST_F(LengthScaling, IsThatOfEachRowOfPositions) {
  for (const auto device : devices()) {
    const auto rows = at::tensor({2, 5, 3, 9, 12, 1}, at::device(device).dtype(at::kLong));
    const auto positions = rows.view({2, 3});
    for (const auto& options : {longrope(), dynamic_ntk()}) {
      RotaryEmbedding rotary(options);
      EXPECT_TRUE(rotary->depends_on_length());
      const auto same = [&](const RotaryAngles& angles, int64_t row, int64_t length) {
        RotaryEmbedding own(at_length(options, length));
        const auto expected = own->angles(positions[row], at::kDouble);
        return at::allclose(angles.cos[row], expected.cos[0], 1e-12, 1e-12) &&
               at::allclose(angles.sin[row], expected.sin[0], 1e-12, 1e-12);
      };
      const auto by_rows = rotary->angles(positions, at::kDouble);
      EXPECT_TRUE(same(by_rows, 0, 6));
      EXPECT_TRUE(same(by_rows, 1, 13));
      const auto given = at::tensor({30, 7}, positions.options()).view({2, 1});
      const auto by_lengths = rotary->angles(positions, given, at::kDouble);
      EXPECT_TRUE(same(by_lengths, 0, 30));
      EXPECT_TRUE(same(by_lengths, 1, 7));
      // One after the other, and of no more than one row.
      const auto packed =
          rotary->angles(rows, given.expand({2, 3}).reshape({6}), at::kDouble).cos.view({2, 3, -1});
      EXPECT_TRUE(at::equal(packed, by_lengths.cos.squeeze(1)));
      const auto shared = rotary->angles(positions[0], given, at::kDouble);
      EXPECT_EQ(shared.cos.sizes(), at::IntArrayRef({2, 1, 3, D / 2}));
      EXPECT_TRUE(same(shared, 0, 30));
    }
  }
  EXPECT_FALSE(
      RotaryEmbedding(RotaryEmbeddingOptions(D).scaling(NtkScaling(2.0)))->depends_on_length());
  EXPECT_FALSE(RotaryEmbedding(D)->depends_on_length());
}

TEST_F(LengthScaling, RefusesLengthsThatAreNotOfThePositions) {
  RotaryEmbedding rotary(longrope());
  const auto positions = at::arange(6).view({2, 3});
  const auto error = [&](const at::Tensor& lengths) {
    return value_error([&] { rotary->angles(positions, lengths); });
  };
  EXPECT_EQ(error({}), "RotaryEmbedding: lengths must be defined");
  EXPECT_EQ(error(at::ones({2, 1})), "RotaryEmbedding: lengths dtype (Float) must be an integer");
  EXPECT_EQ(error(at::arange(2)),
            "RotaryEmbedding: lengths [2] must be broadcast to positions; positions [2, 3]");
  EXPECT_EQ(error(at::arange(3).view({3, 1})),
            "RotaryEmbedding: lengths [3, 1] must be broadcast to positions; positions [2, 3]");
}

/// Prompts below, at and beyond the length trained for, and one that is empty.
TEST_F(LengthScaling, IsThatOfEachSequenceOfABatch) {
  const Numbers lengths = {5, 11, 8, 0};
  for (const auto device : devices()) {
    const auto x = uniform({4, 11, E}, doubles(device));
    for (const auto& s : subjects(device)) {
      for (const bool fixed : {false, true}) {
        auto cache = s.make_cache(4, CacheOptions().fixed_shapes(fixed));
        const auto output = s.forward_cached(x, cache, lengths);
        for (int64_t b = 0; b < 3; ++b) {
          const auto own = lengths[b];
          EXPECT_TRUE(is_alike(output[b].narrow(0, 0, own), s.alone(x[b].narrow(0, 0, own))))
              << s.name << ", sequence " << b << (fixed ? ", fixed shapes, " : ", ") << device;
        }
      }
    }
  }
}

TEST_F(LengthScaling, IsThatOfEachSequenceOfAStep) {
  const Numbers lengths = {5, 11, 8, 0};
  for (const auto device : devices()) {
    const auto x = uniform({24, E}, doubles(device));
    for (const auto& s : subjects(device)) {
      auto cache = s.make_pages();
      const Numbers sequences = {cache.add(), cache.add(), cache.add(), cache.add()};
      auto step = cache.append(sequences, lengths);
      const auto output = s.forward_step(x, step);
      int64_t first = 0;
      for (const auto own : lengths) {
        if (own == 0) continue;
        EXPECT_TRUE(is_alike(output.narrow(0, first, own), s.alone(x.narrow(0, first, own))))
            << s.name << ", length " << own;
        first += own;
      }
    }
  }
}

TEST_F(LengthScaling, IsThatOfEachSequenceOfANestedTensor) {
  for (const auto device : devices()) {
    const auto x = uniform({5, E}, doubles(device)), y = uniform({11, E}, doubles(device));
    for (const auto& rotary : {longrope(), dynamic_ntk()}) {
      const auto options = GroupQueryAttentionOptions(E, H, 1).causal(true);
      auto own = options;
      GroupQueryAttention module(own.rotary(rotary));
      module->to(device, at::kDouble);
      const auto outputs = module(at::_nested_tensor_from_tensor_list({x, y})).unbind();
      EXPECT_TRUE(is_alike(outputs[0], module(x.unsqueeze(0))[0]));
      EXPECT_TRUE(is_alike(outputs[1], module(y.unsqueeze(0))[0]));
    }
  }
}

/// Cached keys stay as they are: of each token by the length when it came.
TEST_F(LengthScaling, OfDynamicNtkGrowsStepByStepAsAlone) {
  const auto x = uniform({2, 20, E}, doubles());
  const Numbers prompts = {6, 12};
  for (const auto& s : subjects(at::kCPU)) {
    if (s.name.find("dynamic") == std::string::npos) continue;
    for (const bool fixed : {false, true}) {
      auto together = s.make_cache(2, CacheOptions().fixed_shapes(fixed));
      auto pages = s.make_pages();
      const Numbers sequences = {pages.add(), pages.add()};
      std::vector<KVCache> alone;
      for (int b = 0; b < 2; ++b) alone.push_back(s.make_cache(1, {}));
      Numbers lengths = {0, 0};
      for (const auto& counts : {prompts, {1, 1}, {1, 0}, {3, 2}, {1, 1}}) {
        const auto most = std::max(counts[0], counts[1]);
        std::vector<at::Tensor> rows, packed;
        for (int64_t b = 0; b < 2; ++b) {
          rows.push_back(x[b].narrow(0, lengths[b], most));
          packed.push_back(x[b].narrow(0, lengths[b], counts[b]));
        }
        const auto in_batch = s.forward_cached(at::stack(rows), together, counts);
        auto step = pages.append(sequences, counts);
        const auto in_step = s.forward_step(at::cat(packed), step);
        for (int64_t b = 0; b < 2; ++b) {
          if (counts[b] == 0) continue;
          const auto expected = s.forward_cached(packed[b].unsqueeze(0), alone[b], {})[0];
          EXPECT_TRUE(is_alike(in_batch[b].narrow(0, 0, counts[b]), expected)) << s.name;
          EXPECT_TRUE(is_alike(in_step.narrow(0, b * counts[0], counts[b]), expected)) << s.name;
          lengths[b] += counts[b];
        }
      }
    }
  }
}

std::string crossing(const std::string& function, int64_t sequence, int64_t cached,
                     const std::string& from, int64_t length, const std::string& to) {
  const auto number = std::to_string(sequence);
  return function + ": sequence " + number +
         " must be read again from its first token, in a new cache or after truncate(" + number +
         ", 0): its " + std::to_string(cached) + " cached keys are rotated by longrope's " + from +
         " factors, and a length of " + std::to_string(length) + " needs the " + to +
         " ones; original_length 8";
}

/// Every way in which the error's advice can be followed gives what the sequence gives alone.
TEST_F(LengthScaling, OfLongRopeMustNotCrossItsBorderInACache) {
  const auto x = uniform({2, 12, E}, doubles());
  for (const auto& s : subjects(at::kCPU)) {
    if (s.name.find("longrope") == std::string::npos) continue;
    const auto function = s.name.substr(s.name.find(", ") + 2);
    const auto whole = s.alone(x[1].narrow(0, 0, 9));
    for (const bool fixed : {false, true}) {
      const auto options = CacheOptions().fixed_shapes(fixed);
      auto cache = s.make_cache(2, options);
      s.forward_cached(x.narrow(1, 0, 8), cache, {4, 8});
      const auto before = cache.clone();
      EXPECT_ERROR(crossing(function, 1, 8, "short", 9, "long"),
                   s.forward_cached(x.narrow(1, 8, 1), cache, {}));
      EXPECT_EQ(cache.lengths(), Numbers({4, 8}));
      EXPECT_TRUE(at::equal(cache.keys(), before.keys()));
      s.forward_cached(x.narrow(1, 8, 1), cache, {1, 0});
      auto fresh = s.make_cache(2, options);
      const auto again = s.forward_cached(x.narrow(1, 0, 9), fresh, {5, 9});
      EXPECT_TRUE(is_alike(again[1], whole)) << s.name;
      cache.truncate(1, 0);
      const auto in_place = s.forward_cached(x.narrow(1, 0, 9), cache, {0, 9});
      EXPECT_TRUE(is_alike(in_place[1], whole)) << s.name;
      s.forward_cached(x.narrow(1, 9, 1), cache, {1, 1});
      // Back over the border: its keys have the long factors still, and so have their copies.
      cache.truncate(1, 6);
      const auto back = crossing(function, 1, 6, "long", 7, "short");
      auto copy = cache.clone();
      for (auto* kept : {&cache, &copy}) {
        EXPECT_ERROR(back, s.forward_cached(x.narrow(1, 6, 1), *kept, {}));
      }
      copy.reorder(at::tensor({1, 0}, at::kLong));
      EXPECT_ERROR(crossing(function, 0, 6, "long", 7, "short"),
                   s.forward_cached(x.narrow(1, 6, 1), copy, {}));
      s.forward_cached(x.narrow(1, 6, 3), cache, {0, 3});
      cache.reset();
      s.forward_cached(x.narrow(1, 0, 6), cache, {});
    }
  }
}

TEST_F(LengthScaling, OfLongRopeMustNotCrossItsBorderInPages) {
  const auto x = uniform({12, E}, doubles());
  for (const auto& s : subjects(at::kCPU)) {
    if (s.name.find("longrope") == std::string::npos) continue;
    const auto function = s.name.substr(s.name.find(", ") + 2);
    auto cache = s.make_pages();
    const auto first = cache.add(), second = cache.add();
    const auto append = [&](int64_t sequence, int64_t count) {
      auto step = cache.append({sequence}, {count});
      return s.forward_step(x.narrow(0, cache.length(sequence) - count, count), step);
    };
    append(first, 7);
    append(second, 6);
    // Four drafts, one after the other, would cross it, which two do not.
    EXPECT_ERROR(crossing(function, second, 6, "short", 10, "long"), append(second, 4));
    cache.truncate(second, 6);
    append(second, 2);
    // Four drafts that follow the same token stand at one position.
    auto drafts = cache.append({first}, {4}, {-1, -1, -1, -1});
    s.forward_step(x.narrow(0, 7, 4), drafts);
    cache.keep(first, {9});
    EXPECT_ERROR(crossing(function, first, 8, "short", 9, "long"), append(first, 1));
    cache.truncate(first, 0);
    EXPECT_TRUE(is_alike(append(first, 9), s.alone(x.narrow(0, 0, 9)))) << s.name;
    append(first, 1);
    cache.truncate(first, 6);
    const auto fork = cache.fork(first);
    for (const auto sequence : {first, fork}) {
      EXPECT_ERROR(crossing(function, sequence, 6, "long", 7, "short"), append(sequence, 1));
    }
  }
}

}  // namespace
}  // namespace heed::test::of_length_scaling
