#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/corpus.h"
#include "language/ngram.h"
#include "language/team.h"
#include "language/text_generator.h"
#include "language/trainer.h"
#include "support/folder_lock.h"

namespace heed::examples {
namespace {

namespace fs = std::filesystem;

class Language : public ::testing::Test {
 protected:
  Language() {
    auto unique = ::testing::TempDir() + "heed_language_XXXXXX";
    folder_ = ::mkdtemp(unique.data());
  }
  ~Language() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  fs::path folder_;
  const std::unique_ptr<Team> team = make_team({});
};

LanguageModelOptions small_model() {
  LanguageModelOptions options;
  options.layers = 2;
  options.width = 32;
  options.heads = 4;
  options.groups = 2;
  options.context = 16;
  return options;
}

TEST_F(Language, HoldsOutTheEndOfEveryFile) {
  write("b.txt", "0123456789");
  write("a/c.txt", "abcdefghijklmnopqrst");
  write("a/short.txt", "xyz");
  write("image.png", std::string("PNG\0", 4));
  write(".hidden/d.txt", "hidden");
  const auto corpus = read_corpus(folder_);
  EXPECT_EQ(corpus.training, "abcdefghijklmnopqrxyz012345678");
  EXPECT_EQ(corpus.held_out, "st9");
  EXPECT_EQ(corpus.files, 3);
  auto other = corpus;
  other.held_out = "sT9";
  EXPECT_NE(fingerprint(corpus), fingerprint(other));
  EXPECT_THROW(read_corpus(folder_ / "image.png"), std::runtime_error);
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
  torch::manual_seed(2);
  const LanguageModel language_model{small_model(), make_language_model(small_model())};
  const auto greedy = SamplingOptions().temperature(0);
  std::string text = "The prompt";
  TextGenerator generator(language_model, text);
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
    ASSERT_EQ(static_cast<unsigned char>(character), expected) << "character " << i;
    text += character;
  }
}

TEST_F(Language, GoesOnBitForBit) {
  Corpus corpus;
  for (int i = 0; i < 200; ++i) corpus.training += "Line " + std::to_string(i * i) + ".\n";
  corpus.held_out = corpus.training.substr(0, 100);
  TrainingOptions training;
  training.steps = 6;
  training.warm_up = 2;
  training.batch_size = 4;
  training.accumulate = 2;
  training.dropout = 0.1;
  for (const auto* dtype : {"float32", "bfloat16"}) {
    training.dtype = dtype;
    Trainer unbroken(small_model(), training, corpus, at::kCPU, *team);
    for (int i = 0; i < 6; ++i) unbroken.step();
    Trainer broken_off(small_model(), training, corpus, at::kCPU, *team);
    for (int i = 0; i < 3; ++i) broken_off.step();
    broken_off.history().held_out.emplace_back(3, broken_off.evaluate());
    const auto path = write("state.pt", broken_off.save("about it"));
    EXPECT_EQ(read_about(path, *team), "about it");
    training.seed = 1;  // what is loaded takes its place
    Trainer resumed(small_model(), training, corpus, at::kCPU, *team);
    training.seed = 0;
    resumed.load(path);
    for (int i = 0; i < 3; ++i) resumed.step();
    EXPECT_EQ(resumed.history().training, unbroken.history().training) << dtype;
    EXPECT_EQ(resumed.history().held_out, broken_off.history().held_out);
    const auto expected = unbroken.language_model().model->parameters();
    const auto actual = resumed.language_model().model->parameters();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
  }
  EXPECT_THROW(read_about(write("damaged.pt", "PK"), *team), std::runtime_error);
}

TEST_F(Language, RefusesALossThatIsNotFinite) {
  Corpus corpus;
  corpus.training = corpus.held_out = std::string(200, 'a') + "bc";
  Trainer trainer(small_model(), TrainingOptions(), corpus, at::kCPU, *team);
  const at::NoGradGuard no_grad;
  trainer.language_model().model->parameters().front().fill_(NAN);
  const auto diverged = ::testing::ThrowsMessage<std::runtime_error>(
      "the loss is no longer finite: try a smaller --learning-rate");
  EXPECT_THAT([&] { trainer.evaluate(); }, diverged);
  const at::AutoGradMode grad(true);
  EXPECT_THAT([&] { trainer.step(); }, diverged);
}

TEST_F(Language, RefusesModelsBeyondTheMemory) {
  for (const auto& [layers, width] : {std::pair<int64_t, int64_t>{1'000'000'000, 4},
                                      {1'000'000'000'000'000, 1'000'000'000'000'000},
                                      {1, 100'000'000}}) {
    auto options = small_model();
    options.layers = layers;
    options.width = width;
    EXPECT_THAT([&] { make_language_model(options); },
                ::testing::ThrowsMessage<std::runtime_error>(
                    ::testing::HasSubstr(" GiB of memory; this machine has ")));
  }
}

TEST_F(Language, SavesTheModelWithItsOptions) {
  torch::manual_seed(3);
  const LanguageModel saved{small_model(), make_language_model(small_model())};
  save_language_model(saved, folder_);
  const auto loaded = load_language_model(folder_);
  EXPECT_EQ(nlohmann::json(loaded.options), nlohmann::json(saved.options));
  const auto expected = saved.model->parameters(), actual = loaded.model->parameters();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
  auto empty = saved.options;
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
  const auto context = trained.options.context;
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

/// Of what train_gpt has trained, by a test before this one.
TEST(TrainedModel, KeepsItsPerplexityWithAnInt8Cache) {
  const char* folder = std::getenv("HEED_TRAINED_GPT");
  const char* text = std::getenv("HEED_TRAINED_TEXT");
  if (folder == nullptr || text == nullptr) GTEST_SKIP() << "needs a trained model";
  auto trained = load_language_model(folder);
  trained.model->eval();
  const auto held_out = read_corpus(text).held_out;
  const auto exact = loss_with_cache(trained, held_out, {});
  const auto int8 = loss_with_cache(trained, held_out, CacheOptions().dtype(at::kChar));
  const auto change = std::exp(int8 - exact) - 1.0;
  std::cout << "perplexity " << std::exp(exact) << ", with int8 " << 100.0 * change << " % more\n";
  EXPECT_NE(int8, exact);
  EXPECT_LT(std::abs(change), 1e-3);
}

}  // namespace
}  // namespace heed::examples
