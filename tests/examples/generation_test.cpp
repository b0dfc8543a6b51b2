// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/encoder_decoder.h>
#include <torch/nn/init.h>
#include <torch/utils.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/codec.h"
#include "language/generation_config.h"
#include "language/language_model.h"
#include "language/sampling_arguments.h"
#include "language/text_generator.h"
#include "small_gpt.h"
#include "support/seeds.h"

namespace heed::examples::of_generation {
namespace {

using nlohmann::json;
using Tokens = std::vector<int64_t>;

class Generation : public Language {
 protected:
  GenerationDefaults read(const json& fields, const std::string& name = "generation_config") const {
    write(name + ".json", fields.dump());
    return read_generation_defaults(folder_);
  }

  /// How a model with these fields samples by a command line.
  SamplingOptions chosen(const json& fields, const std::string& command_line,
                         const Tokens& ends = {}) const {
    LanguageModel model;
    model.defaults = read(fields);
    model.ends = ends;
    return chosen(model, command_line);
  }

  static SamplingOptions chosen(const LanguageModel& model, const std::string& command_line) {
    CommandLine app("", "test");
    SamplingArguments arguments;
    add_sampling_options(app, arguments);
    app.parse(command_line);
    return arguments.chosen(model);
  }

  /// A tokenizer of three letters that begins texts with <s>.
  std::string write_tokenizer() const {
    return write("tokenizer.json", R"({
      "version": "1.0",
      "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
                        "rstrip": false, "normalized": false, "special": true}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": true},
      "post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
      "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": false,
                "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3}, "merges": []}
    })");
  }
};

TEST_F(Generation, FollowsTheFolderAsTransformersDoes) {
  EXPECT_FALSE(read_generation_defaults(folder_).greedy);  // neither file
  EXPECT_EQ(read_generation_defaults(folder_).sampling.temperature(), 0.8);
  const auto nothing = read(json::object());
  EXPECT_TRUE(nothing.greedy);
  EXPECT_EQ(nothing.tokens, std::nullopt);
  EXPECT_EQ(nothing.sampling.temperature(), 1);
  EXPECT_EQ(nothing.sampling.top_k(), 50);
  const auto all = read({{"do_sample", true},
                         {"temperature", 0.6},
                         {"top_k", 7},
                         {"top_p", 0.9},
                         {"min_p", 0.1},
                         {"repetition_penalty", 1.5},
                         {"no_repeat_ngram_size", 3},
                         {"min_new_tokens", 4},
                         {"max_new_tokens", 30}});
  EXPECT_FALSE(all.greedy);
  EXPECT_EQ(all.tokens, 30);
  EXPECT_EQ(all.sampling.temperature(), 0.6);
  EXPECT_EQ(all.sampling.top_k(), 7);
  EXPECT_EQ(all.sampling.top_p(), 0.9);
  EXPECT_EQ(all.sampling.min_p(), 0.1);
  EXPECT_EQ(all.sampling.repetition_penalty(), 1.5);
  EXPECT_EQ(all.sampling.no_repeat_ngram_size(), 3);
  EXPECT_EQ(all.sampling.min_new_tokens(), 4);
  EXPECT_EQ(all.beams, 1);
  EXPECT_EQ(all.length_penalty, 1);
  EXPECT_EQ(all.early_stopping, EarlyStopping::estimated);
  const auto null = read({{"do_sample", true}, {"temperature", nullptr}, {"top_k", nullptr}});
  EXPECT_EQ(null.sampling.temperature(), 1);
  EXPECT_EQ(null.sampling.top_k(), 50);
}

TEST_F(Generation, ReadsHowBeamsSearch) {
  const auto search = read({{"num_beams", 4}, {"length_penalty", -2.5}, {"early_stopping", true}});
  EXPECT_EQ(search.beams, 4);
  EXPECT_EQ(search.length_penalty, -2.5);
  EXPECT_EQ(search.early_stopping, EarlyStopping::immediate);
  EXPECT_EQ(read({{"early_stopping", "never"}}).early_stopping, EarlyStopping::never);
  EXPECT_EQ(read({{"early_stopping", false}}).early_stopping, EarlyStopping::estimated);
  EXPECT_EQ(read({{"early_stopping", nullptr}}).early_stopping, EarlyStopping::estimated);
}

TEST_F(Generation, ForbidsTokensButEnds) {
  constexpr auto kNever = -std::numeric_limits<double>::infinity();
  const json fields = {{"bad_words_ids", {{7}, {5}, {9}}}, {"eos_token_id", 5}};
  EXPECT_EQ(read(fields).sampling.logit_bias(), LogitBias({{7, kNever}, {9, kNever}}));
  EXPECT_TRUE(read({{"bad_words_ids", {{7}, {5, 9}}}}).sampling.logit_bias().empty());
  EXPECT_TRUE(read({{"bad_words_ids", nullptr}}).sampling.logit_bias().empty());
}

TEST_F(Generation, ReadsWhatTargetsHaveBeside) {
  const auto read_target = [&](const json& fields) {
    write("generation_config.json", fields.dump());
    return read_target_defaults(folder_);
  };
  const auto all = read_target({{"max_length", 30},
                                {"min_length", 5},
                                {"forced_bos_token_id", 3},
                                {"forced_eos_token_id", json::array({2})}});
  EXPECT_EQ(all.tokens, 29);
  EXPECT_EQ(all.sampling.min_new_tokens(), 4);
  EXPECT_EQ(all.first_token, 3);
  EXPECT_EQ(all.last_token, 2);
  const auto given = read_target({{"max_length", 30},
                                  {"max_new_tokens", 9},
                                  {"min_length", 5},
                                  {"min_new_tokens", 0},
                                  {"forced_eos_token_id", 1}});
  EXPECT_EQ(given.tokens, 9);
  EXPECT_EQ(given.sampling.min_new_tokens(), 0);
  EXPECT_EQ(given.first_token, std::nullopt);
  EXPECT_EQ(given.last_token, 1);
  EXPECT_EQ(read({{"max_length", 30}, {"forced_bos_token_id", 3}}).tokens, std::nullopt);
  EXPECT_EQ(read({{"max_length", 30}, {"forced_bos_token_id", 3}}).first_token, std::nullopt);
}

TEST_F(Generation, FindsTheStartOfTargets) {
  write("config.json", R"({"decoder_start_token_id": 5, "bos_token_id": 1})");
  EXPECT_EQ(target_start(folder_), 5);
  write("generation_config.json", R"({"bos_token_id": 4})");
  EXPECT_EQ(target_start(folder_), 4);
  write("generation_config.json", R"({"decoder_start_token_id": 6, "bos_token_id": 4})");
  EXPECT_EQ(target_start(folder_), 6);
  write("generation_config.json", "{}");
  EXPECT_EQ(target_start(folder_), 5);
  write("config.json", "{}");
  EXPECT_THAT([&] { target_start(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  folder_.string() + "/config.json must have decoder_start_token_id"));
}

TEST_F(Generation, ReadsConfigWithoutGenerationConfig) {
  EXPECT_EQ(read({{"temperature", 0.5}, {"do_sample", true}}, "config").sampling.temperature(),
            0.5);
  EXPECT_EQ(read({{"temperature", 0.7}}).sampling.temperature(), 0.7);
}

TEST_F(Generation, ReadsTheEndAsANumberOrAList) {
  write("config.json", R"({"eos_token_id": 5, "bos_token_id": 1})");
  EXPECT_EQ(special_tokens(folder_, "eos_token_id"), Tokens({5}));
  write("generation_config.json", R"({"eos_token_id": [7, 8], "bos_token_id": null})");
  EXPECT_EQ(special_tokens(folder_, "eos_token_id"), Tokens({7, 8}));
  EXPECT_EQ(special_tokens(folder_, "bos_token_id"), Tokens({1}));
  EXPECT_EQ(special_tokens(folder_, "pad_token_id"), Tokens());
  const auto path = write("generation_config.json", R"({"eos_token_id": [7, "8"]})");
  EXPECT_THAT([&] { special_tokens(folder_, "eos_token_id"); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  path + ": eos_token_id [7,\"8\"] must be a token or a list of tokens"));
}

TEST_F(Generation, NamesAFieldThatIsWrong) {
  const auto path = (folder_ / "generation_config.json").string();
  const auto whole = [](const std::string& least) {
    return " must be a whole number from " + least + " to 1000000000000000";
  };
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"temperature", -0.5}}, "temperature -0.5 must be at least 0"},
      {{{"temperature", "hot"}}, "temperature \"hot\" must be at least 0"},
      {{{"top_k", -1}}, "top_k -1" + whole("0")},
      {{{"top_k", 2.5}}, "top_k 2.5" + whole("0")},
      {{{"top_p", 1.5}}, "top_p 1.5 must be from 0 to 1"},
      {{{"min_p", -1}}, "min_p -1 must be from 0 to 1"},
      {{{"repetition_penalty", 0}}, "repetition_penalty 0 must be above 0"},
      {{{"no_repeat_ngram_size", true}}, "no_repeat_ngram_size true" + whole("0")},
      {{{"min_new_tokens", -2}}, "min_new_tokens -2" + whole("0")},
      {{{"max_new_tokens", 0}}, "max_new_tokens 0" + whole("1")},
      {{{"num_beams", 0}}, "num_beams 0" + whole("1")},
      {{{"length_penalty", "1"}}, "length_penalty \"1\" must be a number"},
      {{{"early_stopping", "always"}},
       "early_stopping \"always\" must be true, false or \"never\""},
      {{{"max_length", 1}}, "max_length 1" + whole("2")},
      {{{"min_length", -1}}, "min_length -1" + whole("0")},
      {{{"forced_bos_token_id", -1}}, "forced_bos_token_id -1" + whole("0")},
      {{{"forced_eos_token_id", {1, 2}}}, "forced_eos_token_id [1,2] must be one token"},
      {{{"do_sample", 1}}, "do_sample 1 must be true or false"}};
  for (const auto& each : cases) {
    write("generation_config.json", each.first.dump());
    EXPECT_THAT([&] { read_target_defaults(folder_); },
                ::testing::ThrowsMessage<std::runtime_error>(path + ": " + each.second));
  }
}

TEST_F(Generation, LetsTheCommandLineOverrideTheFolder) {
  const json sampled = {{"do_sample", true}, {"temperature", 0.6}, {"repetition_penalty", 1.5}};
  EXPECT_EQ(chosen(sampled, "").temperature(), 0.6);
  EXPECT_EQ(chosen(sampled, "").top_k(), 50);
  EXPECT_EQ(chosen(sampled, "").repetition_penalty(), 1.5);
  EXPECT_EQ(chosen(sampled, "--temperature 2").temperature(), 2);
  EXPECT_EQ(chosen(sampled, "--top-k 0").top_k(), 0);
  EXPECT_EQ(chosen(sampled, "--repetition-penalty 1").repetition_penalty(), 1);
  EXPECT_EQ(chosen(sampled, "--greedy").temperature(), 0);
  EXPECT_EQ(chosen(sampled, "--greedy").repetition_penalty(), 1.5);
  const json greedy = {{"temperature", 0.6}};
  EXPECT_EQ(chosen(greedy, "").temperature(), 0);
  EXPECT_EQ(chosen(greedy, "--top-p 0.5").temperature(), 0.6);
  EXPECT_EQ(chosen(greedy, "--frequency-penalty -0.5").temperature(), 0);
  EXPECT_EQ(chosen(greedy, "--frequency-penalty -0.5").frequency_penalty(), -0.5);
  EXPECT_EQ(chosen(greedy, "--presence-penalty 0.5").presence_penalty(), 0.5);
  EXPECT_EQ(chosen(greedy, "--no-repeat-ngram-size 3").no_repeat_ngram_size(), 3);
  EXPECT_EQ(chosen(LanguageModel(), "").temperature(), 0.8);
  EXPECT_EQ(chosen(LanguageModel(), "--min-p 0.5").temperature(), 0.8);
}

TEST_F(Generation, HoldsBackTheEndsOfTheModel) {
  const json fields = {{"min_new_tokens", 3}};
  EXPECT_EQ(chosen(fields, "", {4, 5}).min_new_tokens(), 3);
  EXPECT_EQ(chosen(fields, "", {4, 5}).end_tokens(), Tokens({4, 5}));
  EXPECT_EQ(chosen(fields, "--min-new-tokens 7", {4}).min_new_tokens(), 7);
  EXPECT_EQ(chosen(fields, "--min-new-tokens 0", {4}).min_new_tokens(), 0);
  EXPECT_EQ(chosen(fields, "").min_new_tokens(), 0);  // no token ends a text
}

TEST_F(Generation, NamesWhatItLeavesOut) {
  const auto sampled = SamplingOptions(), greedy = SamplingOptions().temperature(0);
  EXPECT_EQ(left_out(folder_, sampled), "");
  read({{"num_beams", 4}, {"typical_p", 0.5}, {"stop_strings", "x"}, {"top_p", 0.5}});
  const auto path = (folder_ / "generation_config.json").string();
  EXPECT_EQ(left_out(folder_, sampled),
            path + " asks for num_beams 4, stop_strings, typical_p 0.5: left out");
  EXPECT_EQ(left_out(folder_, greedy), path + " asks for num_beams 4, stop_strings: left out");
  read({{"num_beams", 1}, {"repetition_penalty", 1.5}, {"min_new_tokens", 3}});
  EXPECT_EQ(left_out(folder_, sampled), "");
  read({{"num_beams", 4}, {"length_penalty", 2.0}, {"early_stopping", true}, {"typical_p", 0.5}});
  EXPECT_EQ(left_out(folder_, greedy, {/*with_beams=*/true}), "");
  read({{"diversity_penalty", 0.5},
        {"min_length", 5},
        {"bad_words_ids", json::array({json::array({5})})}});
  EXPECT_EQ(left_out(folder_, greedy, {/*with_beams=*/true}),
            path + " asks for min_length 5, diversity_penalty 0.5: left out");
  EXPECT_EQ(left_out(folder_, greedy), path + " asks for min_length 5: left out");
  read({{"forced_bos_token_id", 0}, {"min_length", 5}, {"bad_words_ids", {{5}, {6, 7}}}});
  EXPECT_EQ(left_out(folder_, greedy, {/*with_beams=*/false, /*of_target=*/true}),
            path + " asks for bad_words_ids: left out");
}

TEST_F(Generation, PutsTheStartBeforeATextOnce) {
  const auto codec = tokenizer_codec(write_tokenizer());
  EXPECT_EQ(codec->encode("abc"), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(codec->encode("<s>abc"), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(codec->encode("<s><s>a"), Tokens({0, 0, 1}));
  EXPECT_EQ(codec->encode("a<s>b"), Tokens({0, 1, 0, 2}));
  EXPECT_EQ(codec->encode("<s>"), Tokens({0}));
  EXPECT_EQ(codec->encode(""), Tokens({0}));
  EXPECT_EQ(codec->encode_raw("abc"), Tokens({1, 2, 3}));
  EXPECT_EQ(codec->encode_raw("<s>abc"), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(codec->tokens_of("a", /*raw=*/true), Tokens({1}));
  EXPECT_EQ(codec->tokens_of("a", /*raw=*/false), Tokens({0, 1}));
}

LanguageModel small_model() {
  LanguageModel language_model;
  language_model.model = make_gpt(small_options());
  language_model.model->to(at::kDouble);  // no two scores are as close as their rounding
  language_model.context = small_options().context;
  language_model.slides = true;
  language_model.codec = byte_codec();
  language_model.start = {'\n'};
  return language_model;
}

/// The whole text counts, also what has left the context of 16 tokens.
TEST_F(Generation, LooksAtTheWholeText) {
  torch::manual_seed(test::moved(2));
  const auto language_model = small_model();
  const auto greedy = SamplingOptions().temperature(0);
  const auto generated = [&](const Tokens& prompt, const SamplingOptions& options) {
    TextGenerator generator(language_model, prompt, 100);
    auto text = prompt;
    for (int i = 0; i < 100; ++i) text.push_back(*generator.next(options));
    return text;
  };
  const Tokens prompt = {1, 2, 3};
  const auto once = generated(prompt, SamplingOptions(greedy).no_repeat_ngram_size(1));
  EXPECT_EQ(std::set<int64_t>(once.begin(), once.end()).size(), once.size());
  const auto pairs = generated(prompt, SamplingOptions(greedy).no_repeat_ngram_size(2));
  std::set<std::pair<int64_t, int64_t>> seen;
  for (size_t i = 1; i < pairs.size(); ++i) {
    EXPECT_TRUE(seen.emplace(pairs[i - 1], pairs[i]).second) << i;
  }
  // With a large penalty, each token comes once, and those of the prompt do not count.
  const auto present = generated(prompt, SamplingOptions(greedy).presence_penalty(1e6));
  EXPECT_EQ(std::set<int64_t>(present.begin() + 3, present.end()).size(), 100U);
}

TEST_F(Generation, DoesNotEndATextTooEarly) {
  torch::manual_seed(test::moved(2));
  auto language_model = small_model();
  for (int64_t token = 0; token < 250; ++token) language_model.ends.push_back(token);
  const auto length = [&](const SamplingOptions& options) {
    TextGenerator generator(language_model, {1}, 100);
    int64_t count = 0;
    while (count < 100 && generator.next(options)) ++count;
    return count;
  };
  auto options = SamplingOptions().temperature(0).logit_bias({{7, 1e6}});
  EXPECT_EQ(length(options), 0);
  EXPECT_EQ(length(options.min_new_tokens(9).end_tokens(language_model.ends)), 9);
}

/// A decoder of three tokens more than its source has, whose encoder reads the prompt.
LanguageModel small_translator() {
  const auto half = [](int64_t width, int64_t layers) {
    return EncoderOptions(GroupQueryAttentionOptions(width, 2, 2), layers);
  };
  const PositionEmbeddingOptions positions(8);
  const auto encoder = TextEncoderOptions(/*vocab_size=*/20, half(8, 1)).positions(positions);
  const auto decoder = DecoderOptions(23, half(8, 2)).positions(positions).tied_head(false);
  LanguageModel language_model;
  language_model.encoder_decoder = EncoderDecoder(EncoderDecoderOptions(encoder, decoder));
  language_model.encoder_decoder->to(at::kDouble);
  for (auto& parameter : language_model.encoder_decoder->parameters()) {
    if (parameter.dim() > 1) torch::nn::init::normal_(parameter);
  }
  language_model.model = language_model.encoder_decoder->decoder;
  language_model.context = 16;
  language_model.target_start = 2;
  return language_model;
}

/// The most likely tokens, of which none comes twice, so that they vary.
Tokens generated_target(const LanguageModel& language_model, const Tokens& prompt, int64_t most,
                        const LogitBias& bias = {}) {
  const auto options = SamplingOptions().temperature(0).no_repeat_ngram_size(1).logit_bias(bias);
  TextGenerator generator(language_model, prompt, most);
  Tokens target;
  while (static_cast<int64_t>(target.size()) < most) {
    const auto token = generator.next(options);
    if (!token) break;
    target.push_back(*token);
  }
  return target;
}

/// The tokens of `forward`, which reads everything again for each.
TEST_F(Generation, WritesTheTargetOfAPrompt) {
  torch::manual_seed(test::moved(2));
  const auto language_model = small_translator();
  const auto& model = language_model.encoder_decoder;
  model.ptr()->eval();
  const Tokens prompt = {3, 19, 7};
  Tokens expected = {2};
  const torch::NoGradGuard no_gradients;
  for (int i = 0; i < 16; ++i) {
    const auto target = at::tensor(expected).unsqueeze(0);
    auto scores = model.ptr()->forward(at::tensor(prompt).unsqueeze(0), target)[0][i];
    scores = scores.index_fill(0, at::tensor(expected), -std::numeric_limits<double>::infinity());
    expected.push_back(scores.argmax().item<int64_t>());
  }
  expected.erase(expected.begin());
  EXPECT_EQ(generated_target(language_model, prompt, 30), expected);  // the context is full
  EXPECT_NE(generated_target(language_model, {4, 4}, 30), expected);
  EXPECT_EQ(language_model.vocabulary(), 20);
  EXPECT_THAT([&] { generated_target(language_model, {20}, 1); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  "the prompt has token 20, and the model's last is 19"));
}

TEST_F(Generation, ForcesTheFirstAndTheLastTokenOfATarget) {
  torch::manual_seed(test::moved(2));
  auto language_model = small_translator();
  language_model.defaults.first_token = 21;
  language_model.defaults.last_token = 22;
  const LogitBias held_back = {{22, -std::numeric_limits<double>::infinity()}};
  const auto target = generated_target(language_model, {3, 19, 7}, 5, held_back);
  ASSERT_EQ(target.size(), 5U);
  EXPECT_EQ(target.front(), 21);
  EXPECT_EQ(target.back(), 22);
  EXPECT_EQ(generated_target(language_model, {3}, 1), Tokens({22}));
  const auto full = generated_target(language_model, {3}, 30, held_back);
  EXPECT_EQ(full.size(), 16U);
  EXPECT_EQ(full.back(), 22);
  language_model.ends = {22};
  const Tokens before(target.begin(), target.end() - 1);
  EXPECT_EQ(generated_target(language_model, {3, 19, 7}, 5, held_back), before);
}

}  // namespace
}  // namespace heed::examples::of_generation
