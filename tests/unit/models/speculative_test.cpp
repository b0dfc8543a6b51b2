// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/group_query_attention.h>
#include <heed/speculative.h>
#include <torch/utils.h>

#include <random>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_speculative {
namespace {

using Tokens = std::vector<int64_t>;

constexpr int64_t kVocabulary = 50;

Decoder make_model() {
  torch::manual_seed(moved(4));
  auto attention =
      GroupQueryAttentionOptions(32, 4, 2).rotary(RotaryEmbeddingOptions(8)).window(20);
  Decoder model(DecoderOptions(kVocabulary, attention, 2));
  model->to(at::kDouble);  // no ties by rounding
  model->eval();
  return model;
}

/// The tokens that the model continues a prompt with, one by one.
Tokens generate(Decoder& model, const Tokens& prompt, size_t count) {
  auto cache = model->make_paged_cache(20);
  const auto sequence = cache.add();
  Tokens generated, fresh = prompt;
  while (generated.size() < count) {
    auto step = cache.append({sequence}, {static_cast<int64_t>(fresh.size())});
    const auto scores =
        model->forward_cached(at::tensor(fresh, at::kLong).unsqueeze(0), step, /*last_only=*/true);
    generated.push_back(scores[0][0].argmax().item<int64_t>());
    fresh = {generated.back()};
  }
  return generated;
}

/// A tree of random tokens, some of which are those of the text: the root and up to 7 more.
struct Draft {
  Draft(std::mt19937& random, const Tokens& text, size_t position) : tokens{text[position]} {
    const auto draw = [&](int64_t below) {
      return std::uniform_int_distribution<int64_t>(0, below - 1)(random);
    };
    std::vector<size_t> depths = {0};
    for (auto count = draw(8); count > 0; --count) {
      const auto parent = draw(static_cast<int64_t>(tokens.size()));
      const auto depth = depths[parent] + 1, right = position + depth;
      const bool is_right = draw(4) > 0 && right < text.size();
      parents.push_back(parent);
      depths.push_back(depth);
      tokens.push_back(is_right ? text[right] : draw(kVocabulary));
    }
  }

  Tokens tokens, parents = {-1};
};

TEST(Speculative, TextIsThatOfGreedyDecoding) {
  const at::NoGradGuard no_grad;
  auto model = make_model();
  std::mt19937 random(static_cast<unsigned>(moved(3)));
  for (int round = 0; round < 4; ++round) {
    const Tokens prompt(3 + round, 7 + round);
    const auto expected = generate(model, prompt, 60);
    auto cache = model->make_paged_cache(20);
    const auto sequence = cache.add();
    auto step = cache.append({sequence}, {static_cast<int64_t>(prompt.size())});
    auto scores = model->forward_cached(at::tensor(prompt, at::kLong).unsqueeze(0), step,
                                        /*last_only=*/true);
    Tokens text = {scores[0][0].argmax().item<int64_t>()};
    int steps = 0;
    while (text.size() < expected.size()) {
      const Draft draft(random, expected, text.size() - 1);
      const auto tokens = at::tensor(draft.tokens, at::kLong);
      const auto first = cache.length(sequence);
      auto checking = cache.append({sequence}, {tokens.size(0)}, draft.parents);
      scores = model->forward_cached(tokens.unsqueeze(0), checking)[0];
      auto [path, next] = accept_draft(tokens, draft.parents, scores.argmax(1));
      for (size_t i = 1; i < path.size(); ++i) text.push_back(draft.tokens[path[i]]);
      text.push_back(next);
      for (auto& token : path) token += first;
      cache.keep(sequence, path);
      ++steps;
    }
    text.resize(expected.size());
    EXPECT_EQ(text, expected);
    EXPECT_LT(steps, 50);  // of the 59 that decoding takes
  }
}

TEST(Speculative, AcceptsTheModelsOwnPath) {
  const auto accept = [](const Tokens& tokens, const Tokens& parents, const Tokens& chosen) {
    return accept_draft(at::tensor(tokens, at::kLong), parents, at::tensor(chosen, at::kLong));
  };
  const Tokens parents = {-1, 0, 0, 1, 2, 2};
  auto accepted = accept({7, 1, 2, 3, 4, 5}, parents, {2, 9, 5, 9, 9, 8});
  EXPECT_EQ(accepted.path, Tokens({0, 2, 5}));
  EXPECT_EQ(accepted.next, 8);
  accepted = accept({7, 1, 2, 3, 4, 5}, parents, {6, 3, 5, 9, 9, 8});
  EXPECT_EQ(accepted.path, Tokens({0}));
  EXPECT_EQ(accepted.next, 6);
  accepted = accept({7, 1, 1, 3, 4, 5}, parents, {1, 3, 4, 9, 9, 8});  // of equal ones the first
  EXPECT_EQ(accepted.path, Tokens({0, 1, 3}));
  EXPECT_EQ(accept({7}, {-1}, {3}).next, 3);
}

TEST(Speculative, NamesWhatIsWrong) {
  const auto error = [](const at::Tensor& tokens, const Tokens& parents, const at::Tensor& chosen) {
    return value_error([&] { accept_draft(tokens, parents, chosen); });
  };
  const auto two = at::zeros({2}, at::kLong);
  EXPECT_EQ(error(two, {}, two), "accept_draft: parents must not be empty");
  EXPECT_EQ(error(two, {-1}, two), "accept_draft: tokens [2] must be [1], as parents");
  EXPECT_EQ(error(two, {-1, 0}, at::zeros({2})), "accept_draft: chosen dtype (Float) must be Long");
  EXPECT_EQ(error(two, {-1, -1}, two),
            "accept_draft: parents[1] (-1) must be at least 0: only the first has none");
  EXPECT_EQ(error(two, {-1, 1}, two),
            "accept_draft: parents[1] (1) must be at least -1 and below 1: a token that stands "
            "before it in its sequence");
}

}  // namespace
}  // namespace heed::test::of_speculative
