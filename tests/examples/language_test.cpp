// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/codec.h"
#include "language/corpus.h"
#include "language/gpt.h"
#include "language/language_model.h"
#include "language/ngram.h"
#include "language/published.h"
#include "language/text_generator.h"
#include "small_gpt.h"
#include "support/files.h"
#include "support/seeds.h"

namespace heed::examples {
namespace {

namespace fs = std::filesystem;

LanguageModel small_model() {
  LanguageModel language_model;
  language_model.model = make_gpt(small_options());
  language_model.context = small_options().context;
  language_model.slides = true;
  language_model.codec = byte_codec();
  return language_model;
}

std::string spelled(const Codec& codec, const std::vector<int64_t>& tokens) {
  const auto speller = codec.speller();
  std::string text;
  for (const auto token : tokens) text += speller.push(token);
  return text + speller.finish();
}

TEST_F(Language, HoldsOutTheEndOfEveryFile) {
  write("b.txt", "0123456789");
  write("a/c.txt", "abcdefghijklmnopqrst");
  write("a/short.txt", "xyz");
  write("image.png", std::string("PNG\0", 4));
  write(".hidden/d.txt", "hidden");
  const auto corpus = read_corpus(folder_);
  EXPECT_EQ(joined(corpus.training), "abcdefghijklmnopqrxyz012345678");
  EXPECT_EQ(joined(corpus.held_out), "st9");
  EXPECT_EQ(corpus.training.size(), 3U);
  auto other = corpus;
  other.held_out.back() = "8";
  EXPECT_NE(fingerprint(encode(corpus, *byte_codec())), fingerprint(encode(other, *byte_codec())));
  EXPECT_THROW(read_corpus(folder_ / "image.png"), std::runtime_error);
}

TEST_F(Language, HoldsOutWholeCharacters) {
  for (const auto* before : {"0123456", "01234567", "012345678"}) {
    const auto corpus = read_corpus(write("a.txt", std::string(before) + "\u20ac"));
    EXPECT_EQ(joined(corpus.training), before);
    EXPECT_EQ(joined(corpus.held_out), "\u20ac");
  }
  EXPECT_EQ(joined(read_corpus(write("b.txt", std::string(10, '\x80'))).held_out), "");
}

TEST_F(Language, SpellsWholeCharacters) {
  const auto codec = byte_codec();
  const std::string text = "a\u00e9\u20ac\U0001f600b";
  const auto tokens = codec->encode(text);
  ASSERT_EQ(tokens.size(), text.size());
  const auto speller = codec->speller();
  std::vector<std::string> pieces;
  for (const auto token : tokens) {
    if (auto piece = speller.push(token); !piece.empty()) pieces.push_back(std::move(piece));
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "\u00e9", "\u20ac", "\U0001f600", "b"}));
  // Bytes that are not UTF-8, and a character that does not end.
  for (const std::string bytes : {"\x80\xff"
                                  "a",
                                  "\xe2\x82"
                                  "a",
                                  "\xe2\x82\xe2\x82\xac", "a\xf0\x9f"}) {
    EXPECT_EQ(spelled(*codec, codec->encode(bytes)), bytes);
  }
}

TEST_F(Language, ReadsAndSpellsNumbers) {
  const auto codec = number_codec(100);
  EXPECT_EQ(codec->encode(" 1\t22  3\n"), std::vector<int64_t>({1, 22, 3}));
  EXPECT_EQ(codec->encode(""), std::vector<int64_t>());
  EXPECT_EQ(spelled(*codec, {1, 22, 3}), "1 22 3");
  for (const auto* word : {"100", "-1", "x", "1.5", "1,2", "99999999999999999999"}) {
    EXPECT_THAT([&] { codec->encode(std::string("5 ") + word); },
                ::testing::ThrowsMessage<std::runtime_error>(
                    std::string("tokens must be whole numbers from 0 to 99, not ") + word));
  }
}

TEST_F(Language, NamesTheFolderThatCannotBeRead) {
  write("open/a.txt", "text");
  write("open/closed/b.txt", "text");
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(folder_ / "open/closed", fs::perms::none);
  const auto user = ::geteuid();
  ASSERT_EQ(user == 0 ? ::seteuid(65534) : 0, 0);  // root reads everything
  EXPECT_THAT([&] { read_corpus(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  "cannot read " + (folder_ / "open/closed").string() + ": Permission denied"));
  ASSERT_EQ(::seteuid(user), 0);
  fs::permissions(folder_ / "open/closed", fs::perms::owner_all);
}

TEST_F(Language, LocksAFolder) {
  {
    FolderLock first, second, elsewhere;
    EXPECT_TRUE(first.take(folder_));
    EXPECT_FALSE(second.take(folder_));
    EXPECT_TRUE(elsewhere.take(folder_ / "missing"));
  }
  FolderLock later;
  EXPECT_TRUE(later.take(folder_));
}

TEST_F(Language, NgramModelInterpolatesByWittenAndBell) {
  const NgramModel model("abab", 2);
  const double single = (2 + 2.0 / 256) / (4 + 2);  // of a, and of b
  EXPECT_DOUBLE_EQ(model.probability("", 'b'), single);
  EXPECT_DOUBLE_EQ(model.probability("xa", 'b'), (2 + single) / (2 + 1));
  EXPECT_DOUBLE_EQ(model.probability("ax", 'b'), single);  // x never came
  double sum = 0;
  for (int byte = 0; byte < 256; ++byte) sum += model.probability("a", static_cast<char>(byte));
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(model.bits_per_character("ab"),
              -(std::log2(single) + std::log2((2 + single) / 3)) / 2, 1e-12);
}

TEST_F(Language, GeneratesFromTheCacheWhatTheWholeTextGives) {
  torch::manual_seed(test::moved(2));
  const auto language_model = small_model();
  const auto greedy = SamplingOptions().temperature(0);
  std::string text = "The prompt";
  TextGenerator generator(language_model, language_model.codec->encode(text), 30);
  const at::NoGradGuard no_grad;
  // The context is 16: the 17th character leaves 8 of them.
  size_t begin = 0;
  for (int i = 0; i < 30; ++i) {
    if (text.size() - begin > 16) begin = text.size() - 8;
    auto seen = text.substr(begin);
    const auto tokens =
        at::from_blob(seen.data(), {1, static_cast<int64_t>(seen.size())}, at::kByte).to(at::kLong);
    auto model = language_model.model;
    const auto expected = model(tokens)[0][-1].argmax().item<int64_t>();
    const auto character = generator.next(greedy);
    ASSERT_EQ(character, expected) << "character " << i;
    text += static_cast<char>(*character);
  }
}

TEST_F(Language, EndsATextAtItsEndOrAFullContext) {
  torch::manual_seed(test::moved(2));
  auto language_model = small_model();
  language_model.slides = false;
  const auto greedy = SamplingOptions().temperature(0);
  const auto generated = [&](const std::vector<int64_t>& prompt) {
    TextGenerator generator(language_model, prompt, 100);
    std::vector<int64_t> tokens;
    while (const auto token = generator.next(greedy)) tokens.push_back(*token);
    EXPECT_EQ(generator.next(greedy), std::nullopt);
    return std::pair(tokens, generator.is_full());
  };
  const auto [tokens, full] = generated({1, 2, 3});
  EXPECT_EQ(tokens.size(), 14U);  // the 16 are full, and the last is not read
  EXPECT_TRUE(full);
  language_model.ends = {tokens[5]};
  const auto [shorter, also_full] = generated({1, 2, 3});
  const auto end = std::find(tokens.begin(), tokens.end(), tokens[5]);
  EXPECT_EQ(shorter, std::vector<int64_t>(tokens.begin(), end));
  EXPECT_FALSE(also_full);

  EXPECT_THAT([&] { generated(std::vector<int64_t>(17, 5)); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  "the prompt has 17 tokens, and the model's context 16"));
  EXPECT_THAT([&] { generated({}); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  "give a prompt: the model names no token that begins a text"));
}

TEST_F(Language, PassesOverLinksThatLeadNowhere) {
  write("text/a.txt", "0123456789");
  fs::create_symlink("self", folder_ / "text/self");
  fs::create_symlink(".", folder_ / "text/here");
  fs::create_symlink("gone", folder_ / "text/broken");
  ASSERT_EQ(::mkfifo((folder_ / "text/pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_corpus(folder_ / "text").training, std::vector<std::string>{"012345678"});
  EXPECT_THAT([&] { read_corpus(folder_ / "text/self"); },
              ::testing::ThrowsMessage<std::runtime_error>("cannot read " +
                                                           (folder_ / "text/self").string() +
                                                           ": Too many levels of symbolic links"));
}

TEST_F(Language, WritesNoFileThatWasPlanted) {
  const auto path = (folder_ / "losses").string(), other = write("other", "mine");
  for (const auto& name :
       {std::string("losses.part"), ".losses." + std::to_string(::getpid()) + ".0"}) {
    fs::create_symlink(other, folder_ / name);
  }
  write_atomically(path, "first");
  ASSERT_EQ(::mkfifo((path + ".pipe.part").c_str(), 0600), 0);
  write_atomically(path + ".pipe", "not kept waiting");
  const auto content = [](const std::string& file) {
    std::ifstream read(file);
    return std::string(std::istreambuf_iterator<char>(read), {});
  };
  EXPECT_EQ(content(path), "first");
  EXPECT_EQ(content(other), "mine");
  // A link at the path itself is the user's: the file that it leads to is written.
  fs::permissions(other, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("other", folder_ / "link");
  write_atomically(folder_ / "link", "second");
  EXPECT_EQ(content(other), "second");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(fs::status(other).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto pipe = path + ".pipe.part";
  EXPECT_THAT([&] { write_atomically(pipe, "third"); },
              ::testing::ThrowsMessage<std::runtime_error>("cannot write " + pipe +
                                                           ": it is a folder, a device or a pipe"));
  EXPECT_THAT([&] { open_file(pipe); },
              ::testing::ThrowsMessage<std::runtime_error>("cannot read " + pipe +
                                                           ": it is a device, a pipe or a socket"));
}

TEST_F(Language, KnowsTheContextOfPublishedModels) {
  const auto context = [&](const std::string& config) {
    write("config.json", config);
    return published_context(folder_);
  };
  EXPECT_EQ(context(R"({"max_position_embeddings": 32})"), 32);
  EXPECT_EQ(context(R"({"n_positions": 64})"), 64);
  EXPECT_EQ(context(R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
                        "max_position_embeddings": 48}})"),
            48);
  EXPECT_EQ(context(R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})"),
            131'072);
  const auto path = (folder_ / "config.json").string();
  EXPECT_THAT([&] { context("{}"); }, ::testing::ThrowsMessage<std::runtime_error>(
                                          path + " must have max_position_embeddings"));
  EXPECT_THAT([&] { context(R"({"text_config": {"max_position_embeddings": 0}})"); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  path + ": max_position_embeddings 0 must be a whole number from 1"));
}

TEST_F(Language, KnowsEncoderDecoders) {
  EXPECT_FALSE(is_encoder_decoder(folder_));
  for (const auto& [config, expected] : {std::pair<std::string, bool>{"{}", false},
                                         {R"({"is_encoder_decoder": true})", true},
                                         {R"({"is_encoder_decoder": false})", false},
                                         {R"({"is_encoder_decoder": "true"})", false}}) {
    write("config.json", config);
    EXPECT_EQ(is_encoder_decoder(folder_), expected) << config;
  }
}

TEST_F(Language, ReadsJsonWithinLimits) {
  const auto config = write("config.json", "{\"a\": " + std::string(1'000'000, '['));
  EXPECT_THAT([&] { published_context(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  config + ": the file is nested deeper than 32 levels"));
  const auto model = write("model.json", std::string(1'000'000, '['));
  EXPECT_THAT([&] { load_language_model(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  "cannot read " + model + ": the file is nested deeper than 32 levels"));
  fs::remove(config);
  ASSERT_EQ(::mkfifo(config.c_str(), 0600), 0);
  EXPECT_THAT([&] { published_context(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>("cannot read " + config +
                                                           ": it is a device, a pipe or a socket"));
}

TEST_F(Language, RefusesOptionsThatTheWeightsCannotHave) {
  save_gpt(make_gpt(small_options()), small_options(), folder_);
  auto options = small_options();
  options.layers = 1000;
  write("model.json", nlohmann::json(options).dump());
  EXPECT_THAT([&] { load_language_model(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>(
                  ::testing::EndsWith(" bytes) is too small for 1000 layers of width 32")));
}

TEST_F(Language, RefusesModelsBeyondTheMemory) {
  for (const auto& [layers, width] : {std::pair<int64_t, int64_t>{1'000'000'000, 4},
                                      {1'000'000'000'000'000, 1'000'000'000'000'000},
                                      {1, 100'000'000}}) {
    auto options = small_options();
    options.layers = layers;
    options.width = width;
    EXPECT_THAT([&] { make_gpt(options); },
                ::testing::ThrowsMessage<std::runtime_error>(
                    ::testing::HasSubstr(" GiB of memory; this machine has ")));
  }
}

TEST_F(Language, SavesTheModelWithItsOptions) {
  torch::manual_seed(test::moved(3));
  const auto saved = make_gpt(small_options());
  save_gpt(saved, small_options(), folder_);
  EXPECT_THAT(
      [&] { load_language_model(folder_, {}, folder_ / "adapter"); },
      ::testing::ThrowsMessage<std::runtime_error>(
          folder_.string() + " is a model of train_gpt, which --adapter cannot change: give "
                             "one in Hugging Face's format with --model"));
  const auto loaded = load_language_model(folder_);
  EXPECT_EQ(loaded.context, small_options().context);
  const auto expected = saved->parameters(), actual = loaded.model->parameters();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
  auto empty = small_options();
  empty.context = 0;
  write("model.json", nlohmann::json(empty).dump());
  EXPECT_THAT([&] { load_language_model(folder_); },
              ::testing::ThrowsMessage<std::runtime_error>("the context (0) must be at least 1"));
  write("model.json", "{\"layers\": 2}");
  EXPECT_THROW(load_language_model(folder_), std::runtime_error);
}

/// Nats a token of text that follows half a window of text, with keys and values in a cache.
double loss_with_cache(const LanguageModel& trained, const std::string& text,
                       const CacheOptions& options) {
  const at::NoGradGuard no_grad;
  const auto context = trained.context;
  const auto windows = static_cast<int64_t>(text.size()) / (context + 1);
  auto bytes = text;
  const auto tokens = at::from_blob(bytes.data(), {windows, context + 1}, at::kByte).to(at::kLong);
  auto caches = trained.model->make_caches(windows, context, options);
  std::vector<at::Tensor> losses;
  const auto read = [&](int64_t first, int64_t count) {
    const auto scores = trained.model->forward_cached(tokens.narrow(1, first, count), caches);
    const auto next = tokens.narrow(1, first + 1, count);
    losses.push_back(
        at::cross_entropy_loss(scores.flatten(0, 1), next.flatten(), {}, at::Reduction::None));
  };
  read(0, context / 2);  // as a prompt
  losses.clear();
  for (auto position = context / 2; position < context; ++position) read(position, 1);
  return at::cat(losses).mean().item<double>();
}

/// The model is that of an earlier test, which runs train_gpt.
class Perplexity : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* text = std::getenv("HEED_TRAINED_TEXT");
    if (folder_ == nullptr || text == nullptr) GTEST_SKIP() << "needs a trained model";
    held_out_ = joined(read_corpus(text).held_out);
  }

  /// The loss on text that was not trained on.
  double loss(const std::optional<PackOptions>& weights, const CacheOptions& cache) const {
    auto trained = load_language_model(folder_);
    trained.model->eval();
    if (weights) pack_weights(*trained.model, *weights);
    return loss_with_cache(trained, held_out_, cache);
  }

  const char* const folder_ = std::getenv("HEED_TRAINED_GPT");
  std::string held_out_;
};

/// By how much the perplexity is greater, as a part of it.
double increase(double loss, double exact) { return std::exp(loss - exact) - 1.0; }

TEST_F(Perplexity, StaysWithAnInt8Cache) {
  const auto exact = loss({}, {}), int8 = loss({}, CacheOptions().dtype(at::kChar));
  const auto change = increase(int8, exact);
  std::cout << "perplexity " << std::exp(exact) << ", with int8 " << 100.0 * change << " % more\n";
  EXPECT_NE(int8, exact);
  EXPECT_LT(std::abs(change), 1e-3);
}

TEST_F(Perplexity, StaysWithPackedWeights) {
  const auto exact = loss({}, {});
  const auto quantizing = [](PackFormat format) {
    return PackOptions(format).quantize_activations(true);
  };
  for (const auto& [options, most] : {std::pair(PackOptions(PackFormat::bfloat16), 1e-3),
                                      std::pair(PackOptions(PackFormat::int8), 1e-3),
                                      std::pair(quantizing(PackFormat::int8), 1e-3),
                                      std::pair(PackOptions(PackFormat::int4), 2e-2),
                                      std::pair(quantizing(PackFormat::int4), 2e-2)}) {
    const auto packed = loss(options, {});
    const auto change = increase(packed, exact);
    std::cout << "perplexity " << std::exp(exact) << ", format "
              << static_cast<int>(options.format())
              << (options.quantize_activations() ? " and activations: " : ": ") << 100.0 * change
              << " % more\n";
    EXPECT_NE(packed, exact);
    EXPECT_LT(change, most);
  }
}

}  // namespace
}  // namespace heed::examples
