// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <heed/heed.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "modules/caches/step_angles.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_caches {
namespace {

constexpr int64_t B = 2, L = 11, E = 12, H = 3, D = 4;
constexpr at::IntArrayRef kAllTokens{};  // of each sequence

/// An attention that goes on from a cache, and what the same tokens give without one.
struct Subject {
  std::string name;
  std::function<KVCache(int64_t capacity, const CacheOptions& options)> make;
  std::function<at::Tensor(const at::Tensor&, KVCache&, at::IntArrayRef)> forward_cached;
  std::function<PagedKVCache(int64_t pages, const PagedCacheOptions& options)> make_pages;
  std::function<at::Tensor(const at::Tensor&, PagedStep&)> forward_step;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::function<void(at::Device)> move_to;
  std::function<void(bool)> train;

  KVCache make_cache(int64_t capacity) const { return make(capacity, {}); }
  PagedKVCache make_paged(int64_t pages) const {
    return make_pages(pages, PagedCacheOptions().page_size(16));
  }
};

template <typename Module, typename Forward>
Subject subject(const std::string& name, Module module, Forward forward) {
  module->eval();
  return {name,
          [module](int64_t capacity, const CacheOptions& options) {
            return module->make_cache(B, capacity, options);
          },
          [module](const at::Tensor& x, KVCache& cache, at::IntArrayRef counts) {
            return module->forward_cached(x, cache, counts);
          },
          [module](int64_t pages, const PagedCacheOptions& options) {
            return module->make_paged_cache(pages, options);
          },
          [module](const at::Tensor& x, PagedStep& step) {
            return module->forward_cached(x.unsqueeze(0), step).squeeze(0);
          },
          [module, forward](const at::Tensor& x) { return forward(module, x); },
          [module](at::Device device) mutable { module->to(device); },
          [module](bool on) mutable { module->train(on); }};
}

const auto kMasked = [](auto module, const at::Tensor& x) {
  return module->forward(x, causal_mask(x.size(1), x.size(1), x.device()));
};
const auto kCausal = [](auto module, const at::Tensor& x) { return module->forward(x); };

/// Every class of attention that projects its input.
std::vector<Subject> subjects() {
  const auto heads = MultiHeadAttentionOptions(E, H).head_dim(D).value_head_dim(6);
  return {
      subject("Attention", Attention(E), kMasked),
      subject("AttentionV1", AttentionV1(E), kMasked),
      subject("MultiHeadAttention", MultiHeadAttention(heads), kMasked),
      subject("GroupQueryAttention",
              GroupQueryAttention(GroupQueryAttentionOptions(E, H, 1).value_head_dim(6)), kMasked),
      subject("SelfAttention", SelfAttention(E, H),
              [](auto module, const at::Tensor& x) {
                return std::get<0>(
                    module->forward(x, x, x, causal_mask(x.size(1), x.size(1), x.device())));
              }),
      subject("ResidualAttention", ResidualAttention(ResidualAttentionOptions(heads)), kMasked),
      subject("ResidualAttention, pre-norm",
              ResidualAttention(ResidualAttentionOptions(heads).norm_first(true)), kMasked),
      subject(
          "LatentAttention",
          LatentAttention(
              LatentAttentionOptions(E, H, 8).plain_head_dim(4).rotary_head_dim(2).value_head_dim(
                  5)),
          kCausal),
      subject("DifferentialAttention",
              DifferentialAttention(DifferentialAttentionOptions(E, H).causal(true)), kCausal),
      subject("TransformerBlock",
              TransformerBlock(
                  TransformerBlockOptions(GroupQueryAttentionOptions(E, H, 1).causal(true))),
              kMasked),
  };
}

TEST(Caches, EveryAttentionGoesOnFromItsOwn) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const auto& s : subjects()) {
    const auto whole = s.forward(x);
    for (const int64_t chunk : {1, 4, 11}) {
      auto cache = s.make_cache(L);
      const auto output = in_chunks(&s, x, cache, chunk, kAllTokens);
      // Sums of up to E terms of size 1 in another order.
      EXPECT_TRUE(is_close(output, whole, 1e-5)) << s.name << ", chunk " << chunk;
    }
    auto cache = s.make_cache(L);
    const auto ragged = s.forward_cached(x.narrow(1, 0, 7), cache, {7, 3});
    EXPECT_TRUE(is_close(ragged[1].narrow(0, 0, 3), whole[1].narrow(0, 0, 3), 1e-5)) << s.name;
    EXPECT_EQ(cache.lengths(), std::vector<int64_t>({7, 3})) << s.name;
  }
}

/// One prompt of 5 and 3 tokens, then steps of which sequence 1 takes every other.
TEST(Caches, GiveTheSameWithFixedShapes) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    const auto x = uniform({B, L, E}, device);
    for (const auto& s : subjects()) {
      s.move_to(device);
      const auto whole = s.forward(x);
      auto cache = s.make(L, CacheOptions().fixed_shapes(true));
      const auto expect = [&](const at::Tensor& output, int64_t b, int64_t i, int64_t position) {
        EXPECT_TRUE(is_close(output[b][i], whole[b][position], 1e-5))
            << s.name << " on " << device << ", sequence " << b << ", position " << position;
      };
      const auto prompt = s.forward_cached(x.narrow(1, 0, 5), cache, {5, 3});
      expect(prompt, 0, 4, 4);
      expect(prompt, 1, 2, 2);
      std::vector<int64_t> lengths = {5, 3};
      for (int64_t step = 0; step < 6; ++step) {
        const auto token = at::stack({x[0][lengths[0]], x[1][lengths[1]]}).unsqueeze(1);
        const std::vector<int64_t> counts = {1, step % 2};
        const auto output = s.forward_cached(token, cache, counts);
        for (int64_t b = 0; b < B; ++b) {
          if (counts[b] == 1) expect(output, b, 0, lengths[b]);
          lengths[b] += counts[b];
        }
        EXPECT_EQ(cache.lengths(), lengths) << s.name;
      }
      const auto rest =
          s.forward_cached(at::stack({x[0][0], x[1][lengths[1]]}).unsqueeze(1), cache, {0, 1});
      expect(rest, 1, 0, lengths[1]);
    }
  }
}

/// Prompts of 23 and 3 tokens in one step, then 1 and 5, and a fork of the longer sequence that
/// goes on with the tokens of the other.
TEST(Caches, ServeSequencesInPages) {
  constexpr int64_t kLength = 30;
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    const auto x = uniform({B, kLength, E}, device);
    const auto other = at::cat({x[0].narrow(0, 0, 24), x[1].narrow(0, 24, 6)});
    for (const auto& s : subjects()) {
      SCOPED_TRACE(s.name);
      s.move_to(device);
      const auto whole = s.forward(at::stack({x[0], x[1], other}));
      auto cache = s.make_paged(10);
      const auto first = cache.add(), second = cache.add();
      const auto expect = [&](const at::Tensor& output, const at::Tensor& expected) {
        // Sums of up to E terms of size 1 in another order.
        EXPECT_TRUE(is_close(output, expected, 1e-5)) << "on " << device;
      };
      auto prompts = cache.append({first, second}, {23, 3});
      expect(s.forward_step(at::cat({x[0].narrow(0, 0, 23), x[1].narrow(0, 0, 3)}), prompts),
             at::cat({whole[0].narrow(0, 0, 23), whole[1].narrow(0, 0, 3)}));
      auto next = cache.append({second, first}, {5, 1});
      expect(s.forward_step(at::cat({x[1].narrow(0, 3, 5), x[0].narrow(0, 23, 1)}), next),
             at::cat({whole[1].narrow(0, 3, 5), whole[0].narrow(0, 23, 1)}));
      const auto third = cache.fork(first);
      auto forked = cache.append({first, third}, {6, 6});
      expect(s.forward_step(at::cat({x[0].narrow(0, 24, 6), x[1].narrow(0, 24, 6)}), forked),
             at::cat({whole[0].narrow(0, 24, 6), whole[2].narrow(0, 24, 6)}));
    }
  }
}

/// Layers of one step with rotary embeddings of their own.
TEST(Caches, TurnEachLayerByItsOwnAngles) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto x = uniform({1, L, E}, at::kFloat);
  PagedKVCache cache(PagedKVCacheOptions(2, 1, D).layers(3).page_size(16));
  const auto sequence = cache.add();
  std::vector<GroupQueryAttention> layers;
  for (const double base : {10.0, 10000.0, 10.0}) {
    const auto rotary = RotaryEmbeddingOptions(D).base(base);
    layers.emplace_back(GroupQueryAttentionOptions(E, H, 1).causal(true).rotary(rotary));
  }
  for (const int64_t first : {0, 6}) {
    const auto count = first == 0 ? 6 : L - 6;
    auto step = cache.append({sequence}, {count});
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const auto output = layers[layer]->forward_cached(x.narrow(1, first, count), step,
                                                        static_cast<int64_t>(layer));
      const auto whole = layers[layer]->forward(x).narrow(1, first, count);
      EXPECT_TRUE(is_close(output, whole, 1e-5)) << "layer " << layer;  // as above
    }
  }
}

TEST(Caches, MayHoldInt8) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    const auto x = uniform({B, L, E}, device);
    for (const auto& s : subjects()) {
      SCOPED_TRACE(s.name);
      s.move_to(device);
      const auto whole = s.forward(x);
      const auto expect = [&](const at::Tensor& output, const at::Tensor& expected) {
        // Keys and values of up to 3, of which half a scale is 1.2 %.
        EXPECT_TRUE(is_close(output, expected, 0.03)) << "on " << device;
        EXPECT_FALSE(is_close(output, expected, 1e-5)) << "on " << device;
      };
      for (const bool fixed : {false, true}) {
        auto cache = s.make(L, CacheOptions().dtype(at::kChar).fixed_shapes(fixed));
        expect(in_chunks(&s, x, cache, 4, kAllTokens), whole);
      }
      auto pages = s.make_pages(2, PagedCacheOptions().page_size(16).dtype(at::kChar));
      const auto first = pages.add(), second = pages.add();
      for (const auto& [begin, count] : {std::pair(0, 5), std::pair(5, 1), std::pair(6, 5)}) {
        auto step = pages.append({first, second}, {count, count});
        expect(s.forward_step(x.narrow(1, begin, count).flatten(0, 1), step),
               whole.narrow(1, begin, count).flatten(0, 1));
      }
    }
  }
}

TEST(Caches, HaveTheDtypeThatAutocastGivesKeys) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const auto& s : subjects()) {
    EXPECT_EQ(s.make_cache(L).options().dtype(), at::kFloat) << s.name;
    auto made_before = s.make_cache(L);
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const auto whole = s.forward(x).to(at::kFloat);
    auto cache = s.make_cache(L);
    EXPECT_EQ(cache.options().dtype(), at::kBFloat16) << s.name;
    auto pages = s.make_paged(2);
    EXPECT_EQ(pages.options().dtype(), at::kBFloat16) << s.name;
    auto step = pages.append({pages.add()}, {L});
    EXPECT_TRUE(is_close(s.forward_step(x[0], step).to(at::kFloat), whole[0], 0.1)) << s.name;
    for (auto* each : {&cache, &made_before}) {
      const auto output = in_chunks(&s, x, *each, 4, kAllTokens);
      // Outputs of size 2 at most, after up to six products rounded to 2^-9 each.
      EXPECT_TRUE(is_close(output.to(at::kFloat), whole, 0.1)) << s.name;
    }
  }
}

/// Autocast would convert all keys and values in each step.
TEST(Caches, KeepTheirDtypeUnderAutocast) {
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, 5, E}, at::kFloat);
  const auto expect = [&](const std::string& name, auto module, at::IntArrayRef counts) {
    module->eval();
    auto cache = module->make_cache(B, L);
    const Autocast autocast(at::kCPU, at::kBFloat16);
    EXPECT_EQ(module->forward_cached(x, cache, counts).scalar_type(), at::kFloat) << name;
  };
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{}, {5, 3}}) {
    expect("Attention", Attention(E), counts);  // whose output is that of the attention
    expect("AttentionV1", AttentionV1(E), counts);
  }
}

TEST(Caches, HonorTheWindow) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, 40, E}, at::kFloat);
  const auto options =
      GroupQueryAttentionOptions(E, H, 1).causal(true).window(5).rotary(RotaryEmbeddingOptions(4));
  Decoder model(DecoderOptions(7, TransformerBlockOptions(options), 2));
  model->eval();
  const auto tokens = at::randint(7, {B, 40}, at::kLong);
  const auto whole = model->forward(tokens);
  auto caches = model->make_caches(B, 8);
  EXPECT_EQ(caches[0].options().window(), 5);
  EXPECT_TRUE(is_close(in_chunks(model, tokens, caches, 3), whole, 1e-5));
  EXPECT_EQ(model->make_caches(B, 8, CacheOptions().fixed_shapes(true))[0].options().window(),
            std::nullopt);
  auto pages = model->make_paged_cache(3, PagedCacheOptions().page_size(16));
  EXPECT_EQ(pages.options().layers(), 2);
  const auto sequence = pages.add();
  for (int64_t i = 0; i < 40; i += 5) {  // 40 tokens in no more than two of the pages
    auto step = pages.append({sequence}, {5});
    const auto found =
        model->forward_cached(tokens.narrow(0, 0, 1).narrow(1, i, 5), step, /*last_only=*/true);
    EXPECT_TRUE(is_close(found[0], whole[0].narrow(0, i + 4, 1), 1e-5));
    EXPECT_GE(pages.pages_free(), 1);
  }
  // Too small for the window: nothing is evicted.
  EXPECT_EQ(model->make_caches(B, 4)[0].options().window(), std::nullopt);
  DifferentialAttention difference(DifferentialAttentionOptions(E, H).window(5));
  EXPECT_EQ(difference->make_cache(B, 8).options().window(), 5);
}

TEST(Caches, AreLeftAsTheyWereByWhatIsRefused) {
  const at::NoGradGuard no_grad;
  GroupQueryAttention module(GroupQueryAttentionOptions(E, H, 1).softcap(1e39));
  auto cache = module->make_cache(B, L);
  EXPECT_ERROR("GroupQueryAttention: softcap (1e+39) must be from 1e-18 to 1e+18 in Float",
               module->forward_cached(at::ones({B, 3, E}), cache));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({0, 0}));
}

/// Subjects whose default has dropout; the others have none.
TEST(Caches, AreRefusedInTrainingModeWithDropout) {
  const at::NoGradGuard no_grad;
  const auto x = at::ones({B, 3, E});
  const auto heads = MultiHeadAttentionOptions(E, H);
  auto plain = heads;
  plain.dropout(0.0);
  const std::vector<std::pair<Subject, std::string>> dropping = {
      {subject("Attention", Attention(E), kMasked), "Attention: dropout (0.1)"},
      {subject("AttentionV1", AttentionV1(E), kMasked), "AttentionV1: dropout (0.1)"},
      {subject("MultiHeadAttention", MultiHeadAttention(heads), kMasked),
       "MultiHeadAttention: dropout (0.1)"},
      {subject("ResidualAttention", ResidualAttention(ResidualAttentionOptions(plain)), kMasked),
       "ResidualAttention: dropout (0.1)"},
      {subject("LatentAttention",
               LatentAttention(LatentAttentionOptions(E, H, 8).rotary_head_dim(2).dropout(0.2)),
               kCausal),
       "LatentAttention: dropout (0.2)"},
      {subject("DifferentialAttention",
               DifferentialAttention(DifferentialAttentionOptions(E, H).dropout(0.2)), kCausal),
       "DifferentialAttention: dropout (0.2)"},
  };
  for (const auto& [s, beginning] : dropping) {
    const auto text = beginning + " must be 0 in training mode with a cache: call eval()";
    auto cache = s.make_cache(L);
    auto pages = s.make_paged(2);
    auto step = pages.append({pages.add()}, {3});
    s.train(true);
    EXPECT_EQ(value_error([&, &s = s] { s.forward_cached(x, cache, {}); }), text);
    EXPECT_EQ(value_error([&, &s = s] { s.forward_step(x[0], step); }), text);
    EXPECT_EQ(cache.lengths(), std::vector<int64_t>({0, 0})) << s.name;
    s.train(false);
    s.forward_cached(x, cache, {});
    s.forward_step(x[0], step);
  }
  GroupQueryAttention without(E, H, 1);
  auto cache = without->make_cache(B, L);
  without->forward_cached(x, cache);
}

/// Layers with two kinds of rotary embeddings, in turn.
TEST(StepAngles, AreComputedOnceForEqualOptions) {
  RotaryEmbedding local(D), same(D), global(RotaryEmbeddingOptions(D).base(1e6));
  detail::StepAngles angles;
  const auto positions = at::arange(3, at::kLong);
  int computed = 0;
  const auto of = [&](const RotaryEmbedding& rotary, at::ScalarType dtype = at::kFloat) {
    return angles.of(rotary, positions, dtype, [&] { ++computed; }).cos;
  };
  const auto first = of(local), second = of(global);
  EXPECT_FALSE(at::equal(first, second));
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(of(local).is_same(first));
    EXPECT_TRUE(of(same).is_same(first));
    EXPECT_TRUE(of(global).is_same(second));
  }
  EXPECT_EQ(computed, 2);
  EXPECT_EQ(of(local, at::kDouble).scalar_type(), at::kDouble);
  EXPECT_EQ(computed, 3);
}

TEST(Caches, AreRefusedBeforeATreeIsWritten) {
  const at::NoGradGuard no_grad;
  GroupQueryAttention module(GroupQueryAttentionOptions(E, H, 1).alibi(true));
  auto pages = module->make_paged_cache(2);
  auto step = pages.append({pages.add()}, {3}, {-1, 0, 0});
  EXPECT_ERROR("GroupQueryAttention: alibi_slopes must be absent with parents",
               module->forward_cached(at::ones({1, 3, E}), step));
  EXPECT_EQ(step.key_pages().count_nonzero().item<int64_t>(), 0);
}

TEST(Caches, TakeTheDtypesOfAttention) {
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kInt}) {
    EXPECT_ERROR("KVCache: dtype (" + std::string(c10::toString(dtype)) +
                     ") must be Float, Double, BFloat16 or Half, or Char for int8",
                 KVCache{KVCacheOptions(B, 1, 4, D).dtype(dtype)});
  }
}

TEST(Caches, NameTheSizeThatIsWrong) {
  GroupQueryAttention module(E, H, 1);
  EXPECT_ERROR("KVCache: batch (0) must be at least 1", module->make_cache(0, 4));
  EXPECT_ERROR("KVCache: capacity (0) must be at least 1", module->make_cache(1, 0));
  EXPECT_ERROR("PagedKVCache: pages (0) must be at least 1", module->make_paged_cache(0));
  EXPECT_ERROR("PagedKVCache: page_size (20) must be a multiple of 16",
               module->make_paged_cache(4, PagedCacheOptions().page_size(20)));
  auto pages = module->make_paged_cache(4);
  auto step = pages.append({pages.add()}, {3});
  EXPECT_ERROR("GroupQueryAttention: x must be [1, T, ..] with the step's 3 tokens; x [1, 2, 12]",
               module->forward_cached(at::ones({1, 2, E}), step));
  EXPECT_ERROR("PagedStep::write: layer (1) must be at least 0 and below layers (1)",
               module->forward_cached(at::ones({1, 3, E}), step, /*layer=*/1));
  Attention attention(E);
  KVCache sliding(KVCacheOptions(B, 1, 8, E).window(4));
  EXPECT_ERROR("Attention: cache window (4) must be at least the module's (none)",
               attention->forward_cached(uniform({B, 1, E}, at::kFloat), sliding));
}

}  // namespace
}  // namespace heed::test::of_caches
