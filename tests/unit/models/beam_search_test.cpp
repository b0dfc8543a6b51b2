// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/beam_search.h>
#include <heed/encoder_decoder.h>
#include <heed/masks.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/beams.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_beam_search {
namespace {

using Tokens = std::vector<int64_t>;
using Texts = std::vector<BeamHypothesis>;

constexpr int64_t V = 5, E = 16, H = 4, G = 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The log-probability of each token after a text.
using Language = std::function<std::vector<double>(const Tokens&)>;

bool ends(const Tokens& text, const BeamSearchOptions& options) {
  const auto& tokens = options.end_tokens();
  return static_cast<int64_t>(text.size()) == options.max_new_tokens() ||
         std::find(tokens.begin(), tokens.end(), text.back()) != tokens.end();
}

/// All texts that end, with their scores, the best first.
Texts all_texts(const Language& language, const BeamSearchOptions& options) {
  Texts texts;
  std::function<void(const Tokens&, double)> go_on = [&](const Tokens& text, double sum) {
    if (!text.empty() && ends(text, options)) {
      const auto length = static_cast<double>(text.size());
      texts.push_back({text, sum / std::pow(length, options.length_penalty())});
      return;
    }
    const auto scores = language(text);
    for (int64_t token = 0; token < V; ++token) {
      if (scores[size_t(token)] == -kInfinity) continue;
      auto longer = text;
      longer.push_back(token);
      go_on(longer, sum + scores[size_t(token)]);
    }
  };
  go_on({}, 0.0);
  std::sort(texts.begin(), texts.end(),
            [](const auto& a, const auto& b) { return a.score > b.score; });
  return texts;
}

/// The loop of transformers' _beam_search, with its arrays of fixed length and its -1e9 in place of
/// what is not there, for one prompt.
class Loop {
 public:
  Loop(const Language& language, const BeamSearchOptions& options)
      : language_(language),
        options_(options),
        beams_(size_t(options.num_beams())),
        running_(beams_, {{}, -1e9}),
        finished_(beams_, {{{}, -1e9}, false}) {
    running_[0].score = 0.0;
  }

  Texts run() {
    while (take_step()) {
    }
    Texts texts;
    for (int64_t i = 0; i < options_.num_return_sequences(); ++i) {
      texts.push_back(finished_[size_t(i)].first);
    }
    return texts;
  }

 private:
  struct Candidate {
    Tokens tokens;
    double score;
    bool ended;
  };

  std::vector<Candidate> candidates() const {
    std::vector<Candidate> all;
    for (const auto& beam : running_) {
      const auto scores = language_(beam.tokens);
      for (int64_t token = 0; token < V; ++token) {
        auto text = beam.tokens;
        text.push_back(token);
        const bool ended = ends(text, options_);
        all.push_back({std::move(text), beam.score + scores[size_t(token)], ended});
      }
    }
    const auto kept = std::max<size_t>(2, 1 + options_.end_tokens().size()) * beams_;
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    all.resize(std::min(all.size(), kept));
    return all;
  }

  bool take_step() {
    auto best = candidates();
    ++length_;
    auto merged = finished_;
    for (size_t i = 0; i < best.size(); ++i) {
      const bool counts = best[i].ended && i < beams_;
      const auto score = best[i].score / std::pow(length_, options_.length_penalty());
      merged.push_back({{best[i].tokens, counts ? score : score - 1e9}, counts});
    }
    std::stable_sort(merged.begin(), merged.end(),
                     [](const auto& a, const auto& b) { return a.first.score > b.first.score; });
    merged.resize(beams_);
    finished_ = merged;
    for (auto& each : best) each.score -= each.ended ? 1e9 : 0.0;
    std::stable_sort(best.begin(), best.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    for (size_t i = 0; i < beams_; ++i) running_[i] = {best[i].tokens, best[i].score};
    return goes_on(best);
  }

  bool goes_on(const std::vector<Candidate>& best) const {
    const bool all_ended =
        std::all_of(best.begin(), best.end(), [](const auto& each) { return each.ended; });
    const bool full = std::all_of(finished_.begin(), finished_.end(),
                                  [](const auto& each) { return each.second; });
    const auto stops = options_.early_stopping();
    const bool far = stops == EarlyStopping::never && options_.length_penalty() > 0.0;
    const auto length = far ? double(options_.max_new_tokens()) : double(length_);
    const auto possible = running_[0].score / std::pow(length, options_.length_penalty());
    const auto worst = full ? finished_.back().first.score : -1e9;
    return possible > worst && !(full && stops == EarlyStopping::immediate) && !all_ended;
  }

  const Language& language_;
  const BeamSearchOptions& options_;
  const size_t beams_;
  std::vector<BeamHypothesis> running_;
  std::vector<std::pair<BeamHypothesis, bool>> finished_;  // and whether it is one
  int64_t length_ = 0;
};

/// Finds texts by detail::Beams alone.
Texts search(const Language& language, const BeamSearchOptions& options) {
  const Tokens prompt = {3, 1};
  detail::Beams beams(prompt, options);
  while (!beams.running().empty()) {
    std::vector<detail::Continuation> continuations;
    for (size_t beam = 0; beam < beams.running().size(); ++beam) {
      const auto& [text, sum] = beams.running()[beam];
      EXPECT_EQ(static_cast<int64_t>(text.size()), 2 + beams.length());
      const auto scores = language(Tokens(text.begin() + 2, text.end()));
      for (int64_t token = 0; token < V; ++token) {
        continuations.push_back({beam, token, sum + scores[size_t(token)]});
      }
    }
    const auto before = beams.running();
    const auto parents = beams.advance(continuations);
    EXPECT_EQ(parents.size(), beams.running().size());
    for (size_t i = 0; i < parents.size(); ++i) {
      const auto& text = beams.running()[i].text;
      EXPECT_EQ(Tokens(text.begin(), text.end() - 1), before[parents[i]].text);
    }
  }
  return beams.found();
}

void expect_texts(const Texts& actual, const Texts& expected, double tolerance,
                  const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].tokens, expected[i].tokens) << where << ", text " << i;
    EXPECT_NEAR(actual[i].score, expected[i].score, tolerance) << where << ", text " << i;
  }
}

/// Random log-probabilities, the same each time for a text.
Language random_language(uint32_t seed) {
  return [seed](const Tokens& text) {
    auto hash = moved(seed);
    for (const auto token : text) hash = hash * 31 + static_cast<uint64_t>(token) + 1;
    std::mt19937 random(static_cast<unsigned>(hash));
    std::vector<double> scores(V);
    double sum = 0.0;
    for (auto& score : scores) {
      score = std::normal_distribution<double>(0.0, 1.5)(random);
      sum += std::exp(score);
    }
    for (auto& score : scores) score -= std::log(sum);
    return scores;
  };
}

TEST(Beams, AreThoseOfTransformersLoop) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const auto language = random_language(seed);
    for (const auto stopping :
         {EarlyStopping::estimated, EarlyStopping::immediate, EarlyStopping::never}) {
      for (const auto penalty : {-1.0, 0.0, 0.7, 1.0, 2.5}) {
        for (const auto& end_tokens : {Tokens(), Tokens({2}), Tokens({0, 4})}) {
          for (const int64_t num_beams : {1, 2, 3, 4}) {
            const auto options = BeamSearchOptions(num_beams, 7)
                                     .num_return_sequences(num_beams)
                                     .end_tokens(end_tokens)
                                     .length_penalty(penalty)
                                     .early_stopping(stopping);
            const auto where = "seed " + std::to_string(seed) + ", beams " +
                               std::to_string(num_beams) + ", penalty " + std::to_string(penalty) +
                               ", ends " + std::to_string(end_tokens.size()) + ", stopping " +
                               std::to_string(static_cast<int>(stopping));
            // Sums of 1e9 leave the reference 1e-7.
            expect_texts(search(language, options), Loop(language, options).run(), 1e-6, where);
          }
        }
      }
    }
  }
}

TEST(Beams, FindTheBestOfAllTextsIfThereAreEnough) {
  // No text is left out: there are at most 5^3 beams.
  for (uint32_t seed = 30; seed < 34; ++seed) {
    for (const auto penalty : {0.0, 1.0}) {
      const auto language = random_language(seed);
      const auto options = BeamSearchOptions(125, 4)
                               .num_return_sequences(40)
                               .end_tokens({2})
                               .length_penalty(penalty)
                               .early_stopping(EarlyStopping::never);
      auto expected = all_texts(language, options);
      expected.resize(40);
      expect_texts(search(language, options), expected, 1e-12, std::to_string(seed));
    }
  }
}

TEST(Beams, LeaveOutWhatIsImpossible) {
  // After a token there is only the next one; 4 is the end.
  const Language counting = [](const Tokens& text) {
    std::vector<double> scores(V, -kInfinity);
    scores[text.empty() ? 2 : size_t(text.back()) + 1] = -0.5;
    return scores;
  };
  const auto options =
      BeamSearchOptions(3, 10).num_return_sequences(3).end_tokens({4}).length_penalty(0.0);
  expect_texts(search(counting, options), {{{2, 3, 4}, -1.5}}, 1e-12, "counting");
  const Language silent = [](const Tokens&) { return std::vector<double>(V, -kInfinity); };
  EXPECT_TRUE(search(silent, options).empty());
}

/// A model with large weights, whose scores differ from text to text.
Decoder make_model(bool cross_attention, int64_t vocabulary = V) {
  GroupQueryAttentionOptions attention(E, H, G);
  attention.rotary(RotaryEmbeddingOptions(E / H));
  Decoder model(DecoderOptions(
      vocabulary, TransformerBlockOptions(attention).cross_attention(cross_attention), 2));
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() > 1) parameter.mul_(15.0);
  }
  model->eval();
  return model;
}

/// The log-probabilities that `forward` gives after a prompt and a text.
Language language_of(Decoder model, const Tokens& prompt, const TransformerInputs& inputs = {}) {
  return [model, prompt, inputs](const Tokens& text) mutable {
    auto whole = prompt;
    whole.insert(whole.end(), text.begin(), text.end());
    const auto like = at::device(model->token_embedding->weight.device()).dtype(at::kLong);
    const auto scores = model->forward(at::tensor(whole, like).unsqueeze(0), inputs)[0][-1];
    const auto told = at::log_softmax(scores.to(at::kDouble), 0).cpu();
    return std::vector<double>(told.data_ptr<double>(), told.data_ptr<double>() + told.numel());
  };
}

const std::vector<Tokens>& prompts() {
  static const std::vector<Tokens> all = {
      {1, 4, 0, 3, 3, 1, 2, 0, 4, 1, 1, 0, 2, 3, 4, 0, 1, 2}, {2}, {0, 3, 1}};
  return all;
}

TEST(BeamSearch, FindsTextsOfTheWholeModel) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    auto model = make_model(false);
    model->to(device);
    for (const int64_t num_beams : {1, 2, 4}) {
      for (const auto stopping : {EarlyStopping::estimated, EarlyStopping::immediate}) {
        auto options = BeamSearchOptions(num_beams, 9)
                           .num_return_sequences(num_beams)
                           .end_tokens({2})
                           .early_stopping(stopping);
        options.cache().page_size(16);
        const auto found = beam_search(model, prompts(), options);
        ASSERT_EQ(found.size(), prompts().size());
        for (size_t n = 0; n < found.size(); ++n) {
          const auto language = language_of(model, prompts()[n]);
          // Sums of 9 float32 log-probabilities.
          expect_texts(found[n], Loop(language, options).run(), 1e-4,
                       "prompt " + std::to_string(n));
        }
      }
    }
  }
}

TEST(BeamSearch, AttendsToTheMemoryOfEachPrompt) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  auto model = make_model(true);
  const auto memory = uniform({3, 6, E}, at::kFloat) * 4;
  const auto mask = padding_mask(at::tensor({6, 2, 5}, at::kLong), 6);
  const auto options =
      BeamSearchOptions(3, 6).num_return_sequences(3).end_tokens({2}).length_penalty(0.5);
  const auto of_memory = TransformerInputs().memory(memory).memory_mask(mask);
  const auto found = beam_search(model, prompts(), options, of_memory);
  const auto projected =
      TransformerInputs().projected_memory(model->project_memory(memory)).memory_mask(mask);
  const auto again = beam_search(model, prompts(), options, projected);
  for (size_t n = 0; n < found.size(); ++n) {
    const auto row = static_cast<int64_t>(n);
    const auto own =
        TransformerInputs().memory(memory.narrow(0, row, 1)).memory_mask(mask.narrow(0, row, 1));
    const auto language = language_of(model, prompts()[n], own);
    const auto where = "prompt " + std::to_string(n);
    expect_texts(found[n], Loop(language, options).run(), 1e-4, where);
    expect_texts(again[n], found[n], 0.0, where);
  }
}

TEST(BeamSearch, FindsTheBestOfAllTextsWithEnoughBeams) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  auto model = make_model(true);
  const auto inputs = TransformerInputs().memory(uniform({1, 3, E}, at::kFloat) * 4);
  const auto options =
      BeamSearchOptions(25, 3).num_return_sequences(10).end_tokens({2}).early_stopping(
          EarlyStopping::never);
  auto expected = all_texts(language_of(model, {4}, inputs), options);
  expected.resize(10);
  const auto found = beam_search(model, std::vector<Tokens>{{4}}, options, inputs);
  expect_texts(found[0], expected, 1e-4, "all");
}

/// A model of relative biases and large weights, whose encoder and decoder share the embedding.
EncoderDecoder make_pair() {
  const TransformerBlockOptions block(GroupQueryAttentionOptions(E, H, H));
  const auto bias = RelativePositionBiasOptions(H).buckets(8).max_distance(9);
  const auto encoder = EncoderOptions(block, 2).relative_bias(bias);
  const auto decoder = EncoderOptions(block, 2).relative_bias(
      RelativePositionBiasOptions(bias).bidirectional(false));
  EncoderDecoder model(EncoderDecoderOptions(TextEncoderOptions(V, encoder).token_embedding(false),
                                             DecoderOptions(V, decoder)));
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() > 1) parameter.mul_(15.0);
  }
  model->eval();
  return model;
}

/// The log-probabilities that `forward` gives after a prompt and a text, for a source [1, S].
Language language_of(EncoderDecoder model, const Tokens& prompt, const at::Tensor& source,
                     const at::Tensor& mask) {
  return [=](const Tokens& text) mutable {
    auto whole = prompt;
    whole.insert(whole.end(), text.begin(), text.end());
    const auto scores = model->forward(source, at::tensor(whole).unsqueeze(0), mask)[0][-1];
    const auto told = at::log_softmax(scores.to(at::kDouble), 0);
    return std::vector<double>(told.data_ptr<double>(), told.data_ptr<double>() + told.numel());
  };
}

TEST(BeamSearch, FindsTargetsOfSources) {
  torch::manual_seed(moved(7));
  const at::NoGradGuard no_grad;
  const auto model = make_pair();
  const auto source = at::randint(V, {3, 6}, at::kLong);
  const auto mask = padding_mask(at::tensor({6, 2, 5}, at::kLong), 6);
  const auto options =
      BeamSearchOptions(3, 6).num_return_sequences(3).end_tokens({2}).length_penalty(0.5);
  const std::vector<Tokens> starts = {{1}, {1, 4}, {1}};
  const auto found = beam_search(model, source, starts, options, mask);
  ASSERT_EQ(found.size(), starts.size());
  for (size_t n = 0; n < found.size(); ++n) {
    const auto row = static_cast<int64_t>(n);
    const auto language =
        language_of(model, starts[n], source.narrow(0, row, 1), mask.narrow(0, row, 1));
    expect_texts(found[n], Loop(language, options).run(), 1e-4, "prompt " + std::to_string(n));
  }
  // The decoder has the same texts.
  auto own = model;
  const auto again = beam_search(model->decoder, starts, options, own->target_inputs(source, mask));
  for (size_t n = 0; n < found.size(); ++n) expect_texts(again[n], found[n], 0.0, "decoder");
  const auto none = std::vector<Tokens>();
  EXPECT_TRUE(beam_search(model, source.narrow(0, 0, 0), none, options).empty());
  EXPECT_ERROR("beam_search: source [3, 6] must have a row for each of the prompts (2)",
               beam_search(model, source, std::vector<Tokens>{{1}, {1}}, options));
  EXPECT_ERROR("beam_search: model must not be empty",
               beam_search(EncoderDecoder(nullptr), source, starts, options));
  EXPECT_ERROR("beam_search: source must be defined",
               beam_search(model, at::Tensor(), starts, options));
  EXPECT_ERROR(
      "EncoderDecoder: target must have no memory, projected_memory and memory_mask: they "
      "come from the source",
      beam_search(model, source, starts, options,
                  EncoderDecoderInputs().target(TransformerInputs().memory(source))));
}

/// The language, changed as the options say, for texts of at least `least` tokens.
Language penalized(const Language& language, const Tokens& prompt, const SamplingOptions& options,
                   int64_t least, const Tokens& end_tokens) {
  return [=](const Tokens& text) {
    auto scores = language(text);
    for (const auto& [token, number] : options.logit_bias()) scores[size_t(token)] += number;
    auto whole = prompt;
    whole.insert(whole.end(), text.begin(), text.end());
    for (int64_t token = 0; token < V; ++token) {
      auto& score = scores[size_t(token)];
      const bool has_come = std::count(whole.begin(), whole.end(), token) > 0;
      if (has_come)
        score *= score < 0 ? options.repetition_penalty() : 1 / options.repetition_penalty();
      for (size_t i = 0; i + 1 < whole.size(); ++i) {  // pairs
        const bool repeats = whole[i] == whole.back() && whole[i + 1] == token;
        if (options.no_repeat_ngram_size() == 2 && repeats) score = -kInfinity;
      }
    }
    if (static_cast<int64_t>(text.size()) < least) {
      for (const auto token : end_tokens) scores[size_t(token)] = -kInfinity;
    }
    return scores;
  };
}

TEST(BeamSearch, PenalizesLogProbabilities) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  auto model = make_model(false);
  const std::vector<Tokens> own = {{1, 4}, {2, 0, 3}};
  const auto penalties =
      SamplingOptions().repetition_penalty(1.3).no_repeat_ngram_size(2).logit_bias(
          {{1, -0.75}, {3, 0.5}});
  const auto options =
      BeamSearchOptions(2, 6).num_return_sequences(2).end_tokens({2}).min_new_tokens(4).penalties(
          penalties);
  const auto found = beam_search(model, own, options);
  for (size_t n = 0; n < own.size(); ++n) {
    const auto language = penalized(language_of(model, own[n]), own[n], penalties, 4, {2});
    expect_texts(found[n], Loop(language, options).run(), 1e-4, "prompt " + std::to_string(n));
    for (const auto& text : found[n]) EXPECT_GE(text.tokens.size(), 5U);
  }
}

/// The language, with one token possible at the beginning, and one at the end.
Language forced(const Language& language, const BeamSearchOptions& options) {
  return [=](const Tokens& text) {
    auto scores = language(text);
    const auto length = static_cast<int64_t>(text.size());
    auto token = length == 0 ? options.first_token() : std::nullopt;
    if (options.last_token() && length == options.max_new_tokens() - 1) {
      token = options.last_token();
    }
    if (!token) return scores;
    scores.assign(V, -kInfinity);
    scores[size_t(*token)] = 0.0;
    return scores;
  };
}

TEST(BeamSearch, ForcesTheFirstAndTheLastToken) {
  torch::manual_seed(moved(8));
  const at::NoGradGuard no_grad;
  const auto model = make_model(false);
  for (const int64_t most : {1, 2, 6}) {
    for (const bool with_last : {false, true}) {
      auto options = BeamSearchOptions(3, most)
                         .end_tokens({2})
                         .first_token(4)
                         .early_stopping(EarlyStopping::never)
                         .penalties(SamplingOptions().logit_bias({{4, -1.0}}));
      if (with_last) options.last_token(2);
      const auto found = beam_search(model, prompts(), options);
      for (size_t n = 0; n < found.size(); ++n) {
        const auto language =
            penalized(language_of(model, prompts()[n]), prompts()[n], options.penalties(), 0, {2});
        const auto where = std::to_string(most) + ", prompt " + std::to_string(n);
        expect_texts(found[n], Loop(forced(language, options), options).run(), 1e-4, where);
        const bool is_last = most == 1 && with_last;
        EXPECT_EQ(found[n][0].tokens.front(), is_last ? 2 : 4) << where;
      }
    }
  }
  const auto plain = BeamSearchOptions(2, 3);
  EXPECT_ERROR("beam_search: first_token (5) must be at least 0 and below vocab_size (5)",
               beam_search(model, prompts(), BeamSearchOptions(plain).first_token(5)));
  EXPECT_ERROR("beam_search: last_token (-1) must be at least 0 and below vocab_size (5)",
               beam_search(model, prompts(), BeamSearchOptions(plain).last_token(-1)));
}

TEST(BeamSearch, SearchesInABatchAsAlone) {
  torch::manual_seed(moved(5));
  auto model = make_model(false);
  const auto options = BeamSearchOptions(3, 8).num_return_sequences(2).end_tokens({0, 2});
  const auto found = beam_search(model, prompts(), options);
  for (size_t n = 0; n < found.size(); ++n) {
    const auto alone = beam_search(model, std::vector<Tokens>{prompts()[n]}, options);
    expect_texts(found[n], alone[0], 1e-5, "prompt " + std::to_string(n));
  }
  EXPECT_TRUE(beam_search(model, {}, options).empty());
}

TEST(BeamSearch, TakesCachesOfOtherTypes) {
  torch::manual_seed(moved(6));
  auto model = make_model(false);
  auto options = BeamSearchOptions(2, 8).end_tokens({2});
  const auto expected = beam_search(model, prompts(), options);
  options.cache().dtype(at::kChar);
  const auto quantized = beam_search(model, prompts(), options);
  auto halves = make_model(false);
  halves->to(at::kBFloat16);
  options.cache(PagedCacheOptions());
  const auto of_halves = beam_search(halves, prompts(), options);
  for (size_t n = 0; n < expected.size(); ++n) {
    EXPECT_FALSE(quantized[n][0].tokens.empty());
    EXPECT_FALSE(of_halves[n][0].tokens.empty());
    EXPECT_LT(of_halves[n][0].score, 0.0);
  }
}

TEST(BeamSearch, ChecksOptions) {
  auto model = make_model(false);
  const auto error = [&](const BeamSearchOptions& options, std::vector<Tokens> given = {{1}}) {
    return value_error([&] { beam_search(model, given, options); });
  };
  const auto plain = [] { return BeamSearchOptions(2, 3); };
  EXPECT_EQ(error({0, 3}), "beam_search: num_beams (0) must be at least 1");
  EXPECT_EQ(error({2, 0}), "beam_search: max_new_tokens (0) must be at least 1");
  EXPECT_EQ(error(plain().num_return_sequences(3)),
            "beam_search: num_return_sequences (3) must be at least 1 and at most num_beams (2)");
  EXPECT_EQ(error(plain().length_penalty(kInfinity)),
            "beam_search: length_penalty (inf) must be finite");
  EXPECT_EQ(error(plain().penalties(SamplingOptions().temperature(0.5))),
            "beam_search: penalties temperature (0.5) must be 1: no token is drawn");
  EXPECT_EQ(error(plain().penalties(SamplingOptions().top_k(3))),
            "beam_search: penalties top_k (3) must be 0: no token is drawn");
  EXPECT_EQ(error(plain().penalties(SamplingOptions().end_tokens({1}))),
            "beam_search: penalties min_new_tokens and end_tokens must not be given: they are "
            "options of the search");
  EXPECT_EQ(error(plain().penalties(SamplingOptions().repetition_penalty(0))),
            "beam_search: repetition_penalty (0) must be finite and above 0");
  EXPECT_EQ(error(plain().min_new_tokens(1)),
            "beam_search: end_tokens must not be empty with min_new_tokens (1)");
  EXPECT_EQ(error(plain().end_tokens({1, 5})),
            "beam_search: end_tokens[1] (5) must be at least 0 and below scores dim 1 (5)");
  EXPECT_EQ(error(plain(), {{1}, {}}), "beam_search: prompts[1] must not be empty");
  EXPECT_EQ(error(plain(), {{1, -1}}),
            "beam_search: prompts[0][1] (-1) must be at least 0 and below vocab_size (5)");
  auto pages = plain();
  pages.cache().page_size(0);
  EXPECT_EQ(error(pages), "beam_search: cache page_size (0) must be at least 1");
}

TEST(BeamSearch, ChecksModelAndInputs) {
  const auto options = BeamSearchOptions(2, 3);
  const std::vector<Tokens> given = {{1}, {2, 3}};
  const auto crossed = make_model(true);
  const auto memory = [](int64_t rows) { return uniform({rows, 4, E}, at::kFloat); };
  EXPECT_ERROR("beam_search: memory [3, 2, 4, 4] must have a row for each of the prompts (2)",
               beam_search(crossed, given, options, TransformerInputs().memory(memory(3))));
  EXPECT_ERROR("TransformerBlock: memory must be given: there is cross-attention",
               beam_search(crossed, given, options));
  auto model = make_model(false);
  EXPECT_ERROR("TransformerBlock: memory must be absent: there is no cross-attention",
               beam_search(model, given, options, TransformerInputs().memory(memory(2))));
  EXPECT_ERROR("beam_search: rotary_angles must be absent: each step has its own",
               beam_search(model, given, options,
                           TransformerInputs().rotary_angles(
                               RotaryAngles{at::ones({1, 1, 3, 2}), at::ones({1, 1, 3, 2})})));
  EXPECT_ERROR(
      "beam_search: model must have a head: DecoderOptions::head is false",
      beam_search(Decoder(DecoderOptions(V, GroupQueryAttentionOptions(E, H, G), 1).head(false)),
                  given, options));
  EXPECT_ERROR("beam_search: model must not be empty", beam_search(nullptr, given, options));
  const at::NoGradGuard no_grad;
  model->token_embedding->weight.fill_(std::nan(""));
  EXPECT_ERROR("beam_search: scores must not be NaN", beam_search(model, given, options));
}

}  // namespace
}  // namespace heed::test::of_beam_search
