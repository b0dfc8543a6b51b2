// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "language/batch_generator.h"
#include "language/gpt.h"
#include "language/ordered_answers.h"
#include "language/text_generator.h"
#include "support/seeds.h"

namespace heed::examples::of_serving {
namespace {

/// In float64, so that no two scores are as close as their rounding.
LanguageModel small_model() {
  GptOptions options;
  options.layers = 2;
  options.width = 32;
  options.heads = 4;
  options.groups = 2;
  options.context = 40;  // three pages of 16
  LanguageModel language_model;
  language_model.model = make_gpt(options);
  language_model.model->to(at::kDouble);
  language_model.context = options.context;
  language_model.slides = true;
  language_model.codec = byte_codec();
  language_model.start = {'\n'};
  return language_model;
}

GenerationRequest request(const std::string& prompt, int64_t tokens) {
  GenerationRequest request;
  request.prompt = prompt;
  request.tokens = tokens;
  return request;
}

/// Requests of which some exceed the context, by their prompt or in the end.
std::vector<GenerationRequest> requests() {
  const auto sampled = SamplingOptions().top_p(0.9);
  const auto greedy = SamplingOptions().temperature(0);
  const auto varied = SamplingOptions(sampled).frequency_penalty(0.5).presence_penalty(0.5);
  const auto unlike = SamplingOptions(greedy).repetition_penalty(1.5).no_repeat_ngram_size(2);
  return {{"The first prompt", 30, {}, greedy, 0},
          {"", 25, {}, sampled, 1},
          {std::string(60, 'x') + "longer than the context", 35, {}, unlike, 2},
          {"a", 1, {}, sampled, 3},
          {"Another prompt", 100, {}, varied, 4},
          {"Another prompt", 100, {}, greedy, 5},
          {"b", 39, {}, sampled, 6}};
}

std::string generated_alone(const LanguageModel& language_model, const GenerationRequest& request) {
  torch::manual_seed(request.seed);
  const auto prompt = language_model.codec->encode(request.prompt);
  TextGenerator generator(language_model, prompt, request.tokens);
  std::string answer;
  for (int64_t i = 0; i < request.tokens; ++i) {
    const auto token = generator.next(request.sampling);
    if (!token) break;
    answer += static_cast<char>(*token);
  }
  return answer;
}

TEST(BatchGenerator, GeneratesManyTextsAtOnceAsEachAlone) {
  torch::manual_seed(test::moved(2));
  const auto language_model = small_model();
  std::vector<std::string> expected;
  for (const auto& each : requests()) {
    expected.push_back(generated_alone(language_model, each));
  }
  for (const int64_t at_once : {1, 3, 16}) {
    for (const int64_t pages : {0, 3, 4, 7}) {
      SCOPED_TRACE(std::to_string(at_once) + " at once, pages " + std::to_string(pages));
      BatchOptions options;
      options.at_once = at_once;
      options.pages = pages;
      BatchGenerator generator(language_model, options);
      const auto pages_before = generator.pages_free();
      for (const auto& each : requests()) generator.add(each);
      std::vector<std::string> answers(expected.size());
      std::vector<int> ends(expected.size());
      while (!generator.done()) {
        for (const auto& token : generator.step()) {
          answers.at(token.request) += token.text;
          ends.at(token.request) += token.last ? 1 : 0;
        }
        EXPECT_LE(generator.running(), static_cast<size_t>(at_once));
      }
      EXPECT_EQ(answers, expected);
      EXPECT_EQ(ends, std::vector<int>(expected.size(), 1));
      EXPECT_EQ(generator.pages_free(), pages_before);
      const bool enough = pages == 0 || at_once == 1;
      EXPECT_EQ(generator.preemptions() > 0, !enough) << generator.preemptions();
    }
  }
}

/// A model whose frequencies change at 20 tokens.
LanguageModel longrope_model() {
  auto attention = GroupQueryAttentionOptions(32, 4, 2).causal(true);
  attention.rotary(RotaryEmbeddingOptions(8).scaling(
      LongRopeScaling({1.0, 1.5, 2.0, 4.0}, {2.0, 3.0, 5.0, 9.0}, /*original_length=*/20)));
  auto language_model = small_model();
  language_model.model = Decoder(DecoderOptions(256, TransformerBlockOptions(attention), 2));
  language_model.model->to(at::kDouble);
  language_model.model->eval();
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : language_model.model->parameters()) parameter.mul_(8);
  return language_model;
}

/// Without a cache: the whole text in each step.
std::string generated_without_cache(LanguageModel& language_model, const std::string& prompt,
                                    int64_t tokens) {
  const torch::NoGradGuard no_grad;
  auto text = language_model.codec->encode(prompt);
  std::string answer;
  for (int64_t i = 0; i < tokens; ++i) {
    const auto scores = language_model.model(torch::tensor(text).unsqueeze(0));
    text.push_back(scores[0][-1].argmax().item<int64_t>());
    answer += static_cast<char>(text.back());
  }
  return answer;
}

TEST(BatchGenerator, ReadsATextAgainThatOutgrowsTheLengthOfLongRope) {
  torch::manual_seed(test::moved(2));
  auto language_model = longrope_model();
  std::vector<std::string> expected;
  std::vector<GenerationRequest> requests;
  for (const size_t length : {3, 18, 20, 21, 26, 9}) {
    requests.push_back(request(std::string("a prompt of the longer sort").substr(0, length), 13));
    requests.back().sampling.temperature(0);
    expected.push_back(generated_without_cache(language_model, requests.back().prompt, 13));
    EXPECT_EQ(generated_alone(language_model, requests.back()), expected.back()) << length;
  }
  for (const int64_t pages : {0, 3, 6}) {
    BatchOptions options;
    options.pages = pages;
    BatchGenerator generator(language_model, options);
    for (const auto& each : requests) generator.add(each);
    std::vector<std::string> answers(expected.size());
    while (!generator.done()) {
      for (const auto& token : generator.step()) answers.at(token.request) += token.text;
    }
    EXPECT_EQ(answers, expected) << "pages " << pages;
  }
}

TEST(BatchGenerator, BeginsATextWhenAnotherIsWhole) {
  torch::manual_seed(test::moved(2));
  BatchOptions options;
  options.at_once = 2;
  BatchGenerator generator(small_model(), options);
  for (const int64_t tokens : {3, 1, 2}) generator.add(request("a", tokens));
  EXPECT_EQ(generator.waiting(), 3U);
  std::vector<std::vector<size_t>> steps;
  while (!generator.done()) {
    steps.emplace_back();
    for (const auto& token : generator.step()) steps.back().push_back(token.request);
  }
  EXPECT_EQ(steps, (std::vector<std::vector<size_t>>{{0, 1}, {0, 2}, {0, 2}}));
}

/// A stop may span tokens, and its beginning is shown only once it has not gone on.
TEST(BatchGenerator, EndsAnAnswerBeforeAStop) {
  torch::manual_seed(test::moved(2));
  const auto language_model = small_model();
  const GenerationRequest whole{"a", 20, {}, SamplingOptions(), 7};
  const auto answer_until = [&](const std::vector<std::string>& stops) {
    auto stopped = whole;
    stopped.stops = stops;
    BatchGenerator generator(language_model, {});
    generator.add(stopped);
    std::string answer;
    while (!generator.done()) answer += generator.step().front().text;
    return answer;
  };
  const auto text = generated_alone(language_model, whole);
  EXPECT_EQ(answer_until({}), text);
  const auto stop = text.substr(10, 3);
  EXPECT_EQ(answer_until({stop}), text.substr(0, text.find(stop)));
  EXPECT_EQ(answer_until({"never", stop}), text.substr(0, text.find(stop)));
  EXPECT_EQ(answer_until({text.substr(15) + "never"}), text);
}

TEST(BatchGenerator, EndsAnAnswerAtItsEndOrAFullContext) {
  torch::manual_seed(test::moved(2));
  auto language_model = small_model();
  language_model.slides = false;
  const auto greedy = SamplingOptions().temperature(0);
  const GenerationRequest asked{"abc", 100, {}, greedy, 0};
  const auto all = [&] {
    BatchOptions options;
    options.longest = 60;  // the context is 40
    BatchGenerator generator(language_model, options);
    generator.add(asked);
    std::string answer;
    while (!generator.done()) answer += generator.step().front().text;
    EXPECT_EQ(generator.pages_free(), 16 * 3);
    return answer;
  };
  const auto full = generated_alone(language_model, asked);
  EXPECT_EQ(full.size(), 38U);  // the last token is not read
  EXPECT_EQ(all(), full);
  language_model.ends = {static_cast<unsigned char>(full[7])};
  const auto ended = generated_alone(language_model, asked);
  EXPECT_EQ(ended, full.substr(0, full.find(full[7])));
  EXPECT_EQ(all(), ended);
}

TEST(BatchGenerator, RefusesATextThatThePagesNeverHold) {
  BatchOptions options;
  options.pages = 2;
  BatchGenerator generator(small_model(), options);
  generator.add(request(std::string(30, 'x'), 3));  // the last token is not read
  const auto refused = ::testing::ThrowsMessage<std::runtime_error>(
      "it needs 3 pages of 16 tokens, and there are 2");
  EXPECT_THAT([&] { generator.add(request(std::string(30, 'x'), 4)); }, refused);
  EXPECT_THAT([&] { generator.add(request("x", 1000)); }, refused);
}

/// The others go on, with the numbers that they have.
TEST(BatchGenerator, RefusesATokenThatTheModelDoesNotHave) {
  torch::manual_seed(test::moved(2));
  auto language_model = small_model();
  language_model.codec = number_codec(1000);
  BatchGenerator generator(language_model, {});
  generator.add(request("255", 1));
  EXPECT_THAT([&] { generator.add(request("5 256", 1)); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  "the prompt has token 256, and the model's last is 255"));
  generator.add(request("5", 1));
  const auto tokens = generator.step();
  ASSERT_EQ(tokens.size(), 2U);
  EXPECT_EQ(tokens[1].request, 1U);
}

TEST(OrderedAnswers, PrintsAnswersInTheOrderOfTheirPrompts) {
  OrderedAnswers answers({{1, "one"}, {2, "two"}, {4, "four"}});
  EXPECT_EQ(answers.take_lines(), "==> 1 <==\n");
  answers.append(1, "2", true);
  EXPECT_EQ(answers.take_lines(), "");
  for (const auto* text : {"1", "\n", "a"}) answers.append(0, text, false);
  EXPECT_EQ(answers.take_lines(), "one1\n");
  answers.append(0, "b", true);
  EXPECT_EQ(answers.take_lines(), "ab\n\n==> 2 <==\ntwo2\n\n==> 4 <==\n");
  answers.append(2, "3", true);
  EXPECT_EQ(answers.take_lines(), "four3\n");
  EXPECT_EQ(answers.take_lines() + answers.take_rest(), "");
}

TEST(OrderedAnswers, PrintsWhatIsThereWhenItStops) {
  OrderedAnswers answers({{1, "one"}, {2, "two"}, {3, "three"}});
  answers.append(0, "1", false);
  answers.append(1, "2", false);
  answers.append(2, "3", true);
  EXPECT_EQ(answers.take_lines(), "==> 1 <==\n");
  EXPECT_EQ(answers.take_rest(), "one1\n\n==> 3 <==\nthree3\n");
}

}  // namespace
}  // namespace heed::examples::of_serving
