// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <heed/sampling.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_penalties {
namespace {

using Tokens = std::vector<int64_t>;
using Scores = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tokens numbers(const at::Tensor& tokens) {
  const auto on_host = tokens.cpu();
  return {on_host.data_ptr<int64_t>(), on_host.data_ptr<int64_t>() + on_host.numel()};
}

SamplingOptions greedy() { return SamplingOptions().temperature(0); }

/// The most likely token of one row.
int64_t likeliest(const Scores& scores, const SamplingOptions& options, const Tokens& tokens,
                  int64_t generated) {
  const TokenHistory history{tokens, generated};
  return sample(at::tensor(scores, at::kDouble).unsqueeze(0), options, {}, history).item<int64_t>();
}

/// The tokens that no_repeat_ngram_size leaves out, by a table of all that have followed n - 1
/// others.
std::set<int64_t> repeating(const Tokens& tokens, size_t n) {
  std::map<Tokens, std::set<int64_t>> followed;
  for (size_t end = n; end <= tokens.size(); ++end) {
    const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(end);
    followed[Tokens(last - static_cast<std::ptrdiff_t>(n), last - 1)].insert(*(last - 1));
  }
  if (tokens.size() + 1 < n) return {};
  return followed[Tokens(tokens.end() - static_cast<std::ptrdiff_t>(n - 1), tokens.end())];
}

/// The scores as the options leave them to the temperature, in plain loops.
Scores penalized(Scores scores, const SamplingOptions& options, const TokenHistory& history) {
  for (const auto& [token, number] : options.logit_bias()) scores[size_t(token)] += number;
  const Tokens tokens(history.tokens.begin(), history.tokens.end());
  for (const auto token : std::set<int64_t>(tokens.begin(), tokens.end())) {
    auto& score = scores[size_t(token)];
    score = score < 0 ? score * options.repetition_penalty() : score / options.repetition_penalty();
  }
  std::map<int64_t, int> counts;
  for (size_t i = tokens.size() - size_t(history.generated); i < tokens.size(); ++i) {
    ++counts[tokens[i]];
  }
  for (const auto& [token, count] : counts) {
    scores[size_t(token)] -= count * options.frequency_penalty();
    scores[size_t(token)] -= options.presence_penalty();
  }
  if (options.no_repeat_ngram_size() > 0) {
    for (const auto token : repeating(tokens, size_t(options.no_repeat_ngram_size()))) {
      scores[size_t(token)] = -kInfinity;
    }
  }
  if (history.generated < options.min_new_tokens()) {
    for (const auto token : options.end_tokens()) scores[size_t(token)] = -kInfinity;
  }
  return scores;
}

std::vector<SamplingOptions> kinds() {
  return {SamplingOptions().repetition_penalty(1.3),
          SamplingOptions().repetition_penalty(0.6).temperature(0),
          SamplingOptions().presence_penalty(1.5),
          SamplingOptions().presence_penalty(-0.75).top_k(3),
          SamplingOptions().frequency_penalty(0.5),
          SamplingOptions().frequency_penalty(-0.25).temperature(0),
          SamplingOptions().no_repeat_ngram_size(1),
          SamplingOptions().no_repeat_ngram_size(2).temperature(0),
          SamplingOptions().no_repeat_ngram_size(3).top_p(0.9),
          SamplingOptions().min_new_tokens(3).end_tokens({2, 5}),
          SamplingOptions().logit_bias({{0, 2.5}, {7, -1.5}, {4, -kInfinity}}),
          SamplingOptions(),
          SamplingOptions()
              .temperature(0.8)
              .repetition_penalty(1.2)
              .presence_penalty(0.5)
              .frequency_penalty(0.25)
              .no_repeat_ngram_size(2)
              .min_new_tokens(4)
              .end_tokens({1})
              .logit_bias({{3, -2.0}, {9, 1.0}})};
}

/// The options without those that change single scores.
SamplingOptions without_penalties(const SamplingOptions& options) {
  return SamplingOptions()
      .temperature(options.temperature())
      .top_k(options.top_k())
      .top_p(options.top_p())
      .min_p(options.min_p());
}

std::vector<at::Generator> seeded(size_t count) {
  std::vector<at::Generator> generators;
  for (size_t n = 0; n < count; ++n) {
    generators.push_back(at::make_generator<at::CPUGeneratorImpl>(moved(n)));
  }
  return generators;
}

constexpr int64_t kVocabulary = 12;

/// Tokens so far: none up to 14, of few kinds, and never the last two of the vocabulary.
std::vector<Tokens> random_texts(size_t count) {
  std::vector<Tokens> texts;
  for (size_t n = 0; n < count; ++n) {
    const auto length = at::randint(15, {1}, at::kLong).item<int64_t>();
    const auto kinds = at::randint(1, kVocabulary - 1, {1}, at::kLong).item<int64_t>();
    texts.push_back(numbers(at::randint(kinds, {length}, at::kLong)));
  }
  return texts;
}

/// Some of the tokens are generated, from none to all.
std::vector<TokenHistory> histories_of(const std::vector<Tokens>& texts) {
  std::vector<TokenHistory> histories;
  for (const auto& text : texts) {
    const auto most = static_cast<int64_t>(text.size());
    histories.push_back({text, at::randint(most + 1, {1}, at::kLong).item<int64_t>()});
  }
  return histories;
}

/// The scores [N, V] of the reference, in float64.
at::Tensor all_penalized(const at::Tensor& scores, const std::vector<SamplingOptions>& options,
                         const std::vector<TokenHistory>& histories) {
  auto rows = scores.cpu().to(at::kDouble).clone();
  for (size_t n = 0; n < options.size(); ++n) {
    auto row = rows[static_cast<int64_t>(n)];
    const Scores own(row.data_ptr<double>(), row.data_ptr<double>() + kVocabulary);
    row.copy_(at::tensor(penalized(own, options[n], histories[n]), at::kDouble));
  }
  return rows.to(scores.device());
}

/// Each row has options, tokens so far and a generator of its own.
TEST(Penalties, SampleFromTheScoresOfTheReference) {
  const auto options = kinds();
  std::vector<SamplingOptions> plain;
  for (const auto& each : options) plain.push_back(without_penalties(each));
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto device : devices()) {
      torch::manual_seed(moved(2));
      const auto generators = seeded(options.size()), others = seeded(options.size());
      for (int step = 0; step < 100; ++step) {
        const auto count = static_cast<int64_t>(options.size());
        const auto scores = (at::randn({count, kVocabulary}) * 2).to(device, dtype);
        const auto before = scores.clone();
        const auto texts = random_texts(options.size());
        const auto histories = histories_of(texts);
        const auto found = numbers(sample(scores, options, generators, histories));
        EXPECT_EQ(found, numbers(sample(all_penalized(scores, options, histories), plain, others)))
            << dtype << ", step " << step;
        EXPECT_TRUE(scores.equal(before)) << "the caller's scores have changed";
      }
    }
  }
}

TEST(Penalties, DependOnTheRowsOwnTokensAlone) {
  torch::manual_seed(moved(3));
  const auto options = kinds();
  const auto together = seeded(options.size()), alone = seeded(options.size());
  for (int step = 0; step < 30; ++step) {
    const auto rows = at::randn({static_cast<int64_t>(options.size()), kVocabulary});
    const auto texts = random_texts(options.size());
    const auto histories = histories_of(texts);
    const auto tokens = numbers(sample(rows, options, together, histories));
    for (size_t n = 0; n < options.size(); ++n) {
      const auto own = rows.narrow(0, static_cast<int64_t>(n), 1);
      EXPECT_EQ(numbers(sample(own, options[n], alone[n], histories[n])), Tokens({tokens[n]}))
          << "row " << n << ", step " << step;
    }
  }
}

TEST(Penalties, DivideOrMultiplyARepeatedTokenOnce) {
  const auto options = greedy().repetition_penalty(2);
  EXPECT_EQ(likeliest({3, 1.25, -1}, options, {0}, 0), 0);  // 1.5, 1.25
  EXPECT_EQ(likeliest({3, 1.25, -1}, options, {0, 0, 0}, 2), 0);
  EXPECT_EQ(likeliest({3, 1.75, -1}, options, {0, 0, 0}, 2), 1);
  EXPECT_EQ(likeliest({-1, -1.5, -9}, options, {0}, 0), 1);                           // -2, -1.5
  EXPECT_EQ(likeliest({1, 3, -1}, greedy().repetition_penalty(0.25), {0, 0}, 0), 0);  // 4, 3
}

TEST(Penalties, CountGeneratedTokensAlone) {
  const auto presence = greedy().presence_penalty(1), frequency = greedy().frequency_penalty(1);
  const Tokens text = {0, 0, 0, 1};
  EXPECT_EQ(likeliest({3.25, 3, 0}, presence, text, 0), 0);
  EXPECT_EQ(likeliest({3.25, 3, 0}, presence, text, 2), 0);  // 2.25, 2
  EXPECT_EQ(likeliest({3.25, 3, 2.75}, presence, text, 4), 2);
  EXPECT_EQ(likeliest({3.25, 3, 0}, frequency, text, 2), 0);
  EXPECT_EQ(likeliest({3.25, 3, 0}, frequency, text, 3), 1);    // 1.25, 2
  EXPECT_EQ(likeliest({3.25, 3, 1.5}, frequency, text, 4), 1);  // 0.25, 2
}

TEST(Penalties, KeepTokensInARowFromComingTwice) {
  const Tokens text = {3, 1, 2, 0, 3, 1};
  const Scores scores = {1, 2, 3, 0, -1};
  const auto after = [&](int64_t n, const Tokens& tokens) {
    return likeliest(scores, greedy().no_repeat_ngram_size(n), tokens, 0);
  };
  EXPECT_EQ(after(0, text), 2);
  EXPECT_EQ(after(1, text), 4);  // the only one that has not come
  EXPECT_EQ(after(2, text), 1);  // 1 2 has come
  EXPECT_EQ(after(3, text), 1);  // 3 1 2 has come
  EXPECT_EQ(after(4, text), 2);  // 0 3 1 2 has not
  EXPECT_EQ(after(6, text), 2);
  EXPECT_EQ(after(7, text), 2);
  EXPECT_EQ(after(int64_t{1} << 62, text), 2);
  EXPECT_EQ(after(2, {}), 2);
  EXPECT_EQ(after(2, {2}), 2);
  EXPECT_EQ(after(2, {2, 2}), 1);
}

TEST(Penalties, HoldTheEndBack) {
  const auto options = greedy().min_new_tokens(2).end_tokens({0, 2});
  for (const int64_t generated : {0, 1, 2, 3}) {
    EXPECT_EQ(likeliest({3, 1, 2}, options, {1, 1, 1}, generated), generated < 2 ? 1 : 0);
  }
  EXPECT_EQ(likeliest({3, 1, 2}, greedy().end_tokens({0}), {}, 0), 0);
}

/// The bias comes before the penalty for repetitions, and that before the others.
TEST(Penalties, ComeInTheOrderOfTransformers) {
  const auto biased = greedy().logit_bias({{0, -3}}).repetition_penalty(2);
  EXPECT_EQ(likeliest({1, -3, -9}, biased, {0}, 0), 1);  // (1 - 3) * 2
  const auto counted = greedy().repetition_penalty(2).presence_penalty(1);
  EXPECT_EQ(likeliest({4, 1.25, -9}, counted, {0}, 1), 1);  // 4 / 2 - 1
  EXPECT_EQ(likeliest({4, 0.75, -9}, counted, {0}, 1), 0);
}

TEST(Penalties, NeedNoTokensForABias) {
  const auto scores = at::tensor({3.0, 1.0, 2.0, 1.0, 3.0, 2.0}).view({2, 3});
  EXPECT_EQ(numbers(sample(scores, greedy().logit_bias({{1, 2.5}}))), Tokens({1, 1}));
  const auto banned = SamplingOptions().logit_bias({{0, -kInfinity}, {1, -kInfinity}});
  EXPECT_EQ(numbers(sample(scores, banned)), Tokens({2, 2}));
  EXPECT_EQ(sample(at::ones({0, 3}), kinds()[0]).sizes(), at::IntArrayRef({0}));
}

TEST(Penalties, TakeStridesAndGradients) {
  const auto scores = at::randn({3, 2}).t().requires_grad_();
  const Tokens text = {0, 1, 0};
  const std::vector<TokenHistory> histories = {{text, 3}, {{}, 0}};
  const auto options = greedy().repetition_penalty(1.5).frequency_penalty(1);
  EXPECT_EQ(numbers(sample(scores, options, {}, histories)),
            numbers(sample(scores.detach().contiguous(), options, {}, histories)));
}

TEST(Penalties, RefuseWhatIsWrong) {
  const auto error = [](const SamplingOptions& options) {
    const Tokens text = {0, 1};
    const std::vector<TokenHistory> histories(2, {text, 1});
    return value_error([&] { sample(at::ones({2, 3}), options, {}, histories); });
  };
  EXPECT_EQ(error(SamplingOptions().repetition_penalty(0)),
            "sample: repetition_penalty (0) must be finite and above 0");
  EXPECT_EQ(error(SamplingOptions().repetition_penalty(kInfinity)),
            "sample: repetition_penalty (inf) must be finite and above 0");
  EXPECT_EQ(error(SamplingOptions().presence_penalty(kNaN)),
            "sample: presence_penalty (nan) must be finite");
  EXPECT_EQ(error(SamplingOptions().frequency_penalty(-kInfinity)),
            "sample: frequency_penalty (-inf) must be finite");
  EXPECT_EQ(error(SamplingOptions().no_repeat_ngram_size(-1)),
            "sample: no_repeat_ngram_size (-1) must be at least 0");
  EXPECT_EQ(error(SamplingOptions().min_new_tokens(-2)),
            "sample: min_new_tokens (-2) must be at least 0");
  EXPECT_EQ(error(SamplingOptions().min_new_tokens(2)),
            "sample: end_tokens must not be empty with min_new_tokens (2)");
  EXPECT_EQ(error(SamplingOptions().end_tokens({0, 3})),
            "sample: end_tokens[1] (3) must be at least 0 and below scores dim 1 (3)");
  EXPECT_EQ(error(SamplingOptions().logit_bias({{-1, 1}})),
            "sample: logit_bias token (-1) must be at least 0 and below scores dim 1 (3)");
  EXPECT_EQ(error(SamplingOptions().logit_bias({{2, kInfinity}})),
            "sample: logit_bias of token 2 (inf) must be finite or -inf");
  EXPECT_EQ(error(SamplingOptions().logit_bias({{2, kNaN}})),
            "sample: logit_bias of token 2 (nan) must be finite or -inf");
  EXPECT_EQ(
      error(SamplingOptions().logit_bias({{0, -kInfinity}, {1, -kInfinity}, {2, -kInfinity}})),
      "sample: scores row 0 maximum with penalties (-inf) must be finite; scores [2, 3]");
}

TEST(Penalties, RefuseToLookAtTokensThatAreNotGiven) {
  const auto error = [](const SamplingOptions& options) {
    return value_error([&] { sample(at::ones({2, 3}), options); });
  };
  EXPECT_EQ(error(SamplingOptions().repetition_penalty(1.5)),
            "sample: repetition_penalty (1.5) must be 1 without histories");
  EXPECT_EQ(error(SamplingOptions().presence_penalty(-0.5)),
            "sample: presence_penalty (-0.5) must be 0 without histories");
  EXPECT_EQ(error(SamplingOptions().frequency_penalty(2)),
            "sample: frequency_penalty (2) must be 0 without histories");
  EXPECT_EQ(error(SamplingOptions().no_repeat_ngram_size(3)),
            "sample: no_repeat_ngram_size (3) must be 0 without histories");
  EXPECT_EQ(error(SamplingOptions().min_new_tokens(4).end_tokens({1})),
            "sample: min_new_tokens (4) must be 0 without histories");
}

TEST(Penalties, RefuseWrongTokens) {
  const auto error = [](const std::vector<TokenHistory>& histories) {
    const auto options = SamplingOptions().repetition_penalty(2);
    return value_error([&] { sample(at::ones({2, 3}), options, {}, histories); });
  };
  const Tokens good = {0, 2}, large = {0, 1, 3}, negative = {-1};
  EXPECT_EQ(error({{good, 0}}), "sample: histories size (1) must equal 0 or scores dim 0 (2)");
  EXPECT_EQ(error({{good, 0}, {good, 3}}),
            "sample: histories[1].generated (3) must be at least 0 and at most tokens size (2)");
  EXPECT_EQ(error({{good, -1}, {good, 0}}),
            "sample: histories[0].generated (-1) must be at least 0 and at most tokens size (2)");
  EXPECT_EQ(error({{good, 2}, {large, 0}}),
            "sample: histories[1].tokens[2] (3) must be at least 0 and below scores dim 1 (3)");
  EXPECT_EQ(error({{negative, 0}, {good, 0}}),
            "sample: histories[0].tokens[0] (-1) must be at least 0 and below scores dim 1 (3)");
}

}  // namespace
}  // namespace heed::test::of_penalties
