#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <sys/stat.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/script.h>
#include <torch/utils.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/checkpoint.h"
#include "language/codec.h"
#include "language/corpus.h"
#include "language/gpt.h"
#include "language/language_model.h"
#include "language/ngram.h"
#include "language/published.h"
#include "language/team.h"
#include "language/text_generator.h"
#include "language/trainer.h"
#include "language/training_run.h"
#include "support/files.h"
#include "support/seeds.h"

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

GptOptions small_options() {
  GptOptions options;
  options.layers = 2;
  options.width = 32;
  options.heads = 4;
  options.groups = 2;
  options.context = 16;
  return options;
}

LanguageModel small_model() {
  LanguageModel language_model;
  language_model.model = make_gpt(small_options());
  language_model.context = small_options().context;
  language_model.slides = true;
  language_model.codec = byte_codec();
  return language_model;
}

TrainedModel trained_model(double dropout = 0.0) {
  return {[=] { return make_gpt(small_options(), dropout); }, small_options().context};
}

TokenCorpus bytes_of(const std::string& training, const std::string& held_out) {
  return encode({{training}, {held_out}}, *byte_codec());
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

TEST_F(Language, GoesOnBitForBit) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "Line " + std::to_string(i * i) + ".\n";
  const auto corpus = bytes_of(text, text.substr(0, 100));
  TrainingOptions training;
  training.steps = 6;
  training.warm_up = 2;
  training.batch_size = 4;
  training.accumulate = 2;
  for (const auto* dtype : {"float32", "bfloat16"}) {
    training.dtype = dtype;
    Trainer unbroken(trained_model(0.1), training, corpus, at::kCPU, *team);
    for (int i = 0; i < 6; ++i) unbroken.step();
    Trainer broken_off(trained_model(0.1), training, corpus, at::kCPU, *team);
    for (int i = 0; i < 3; ++i) broken_off.step();
    broken_off.history().held_out.emplace_back(3, broken_off.evaluate());
    const auto path = (folder_ / "state").string();
    broken_off.save(path, "about it");
    const Checkpoint checkpoint(path, *team);
    EXPECT_EQ(checkpoint.about(), "about it");
    training.seed = 1;  // what is loaded takes its place
    Trainer resumed(trained_model(0.1), training, corpus, at::kCPU, *team);
    training.seed = 0;
    resumed.load(checkpoint);
    for (int i = 0; i < 3; ++i) resumed.step();
    EXPECT_EQ(resumed.history().training, unbroken.history().training) << dtype;
    EXPECT_EQ(resumed.history().held_out, broken_off.history().held_out);
    const auto expected = unbroken.model()->parameters();
    const auto actual = resumed.model()->parameters();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
  }
}

TEST_F(Language, RunsNoCodeOfACheckpoint) {
  const auto path = (folder_ / "evil").string(), written = (folder_ / "written").string();
  torch::jit::Module evil("__torch__.Evil");
  evil.define(R"(
    def __getstate__(self):
      return 1
    def __setstate__(self, state: int):
      torch.save(torch.zeros([1]), ")" +
              written + R"(")
  )");
  evil.save(path);
  torch::jit::load(path);
  ASSERT_TRUE(fs::remove(written)) << "LibTorch's reader runs the code";
  EXPECT_ANY_THROW(Checkpoint(path, *team));
  EXPECT_FALSE(fs::exists(written));
}

/// A checkpoint of which one thing is changed.
class ChangedCheckpoint : public Language {
 protected:
  ChangedCheckpoint() {
    training_.steps = 3;
    training_.warm_up = 1;
    training_.batch_size = 2;
    const auto text = std::string(200, 'a') + "bc";
    corpus_ = bytes_of(text, text);
    Trainer trainer(trained_model(), training_, corpus_, at::kCPU, *team);
    for (int i = 0; i < 2; ++i) trainer.step();
    trainer.history().held_out.emplace_back(2, trainer.evaluate());
    trainer.save(path_, "about it");
    tensors_ = read_weights(path_);
    tensors_.erase("about");
  }

  std::string error_with(const std::string& name, const at::Tensor& tensor) {
    auto changed = tensors_;
    changed[name] = tensor;
    return error_of(changed);
  }

  std::string error_of(const NamedTensors& tensors) {
    write_checkpoint(tensors, "about it", path_);
    Trainer trainer(trained_model(), training_, corpus_, at::kCPU, *team);
    try {
      trainer.load(Checkpoint(path_, *team));
    } catch (const std::runtime_error& error) {
      const std::string message = error.what(), begin = "cannot read " + path_ + ": ";
      EXPECT_EQ(message.substr(0, begin.size()), begin);
      return message.substr(std::min(message.size(), begin.size()));
    }
    return "";
  }

  std::string path_ = folder_ / "changed";
  TrainingOptions training_;
  TokenCorpus corpus_;
  NamedTensors tensors_;
};

TEST_F(ChangedCheckpoint, IsRefusedIfATensorHasAnotherShapeOrDtype) {
  ASSERT_EQ(error_of(tensors_), "");
  const auto [size, of_training] = std::pair(tensors_.size(), tensors_.at("training_losses"));
  ASSERT_GT(size, 70U);
  EXPECT_EQ(of_training.numel(), 2);
  for (const auto& [name, tensor] : tensors_) {
    const auto longer = at::zeros({tensor.numel() + 1, 3}, tensor.options());
    EXPECT_THAT(error_with(name, longer),
                ::testing::HasSubstr(name + " (" + c10::toString(tensor.scalar_type()) + " [" +
                                     std::to_string(tensor.numel() + 1) + ", 3]) must be "));
    EXPECT_THAT(error_with(name, tensor.to(at::kInt)), ::testing::HasSubstr(name + " (Int ["))
        << name;
    auto fewer = tensors_;
    fewer.erase(name);
    // A file may lack a step: the optimizer has no state of a parameter before its first gradient.
    const auto error = error_of(fewer);
    if (name.find("optimizer.step.") == 0) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_EQ(error, "it has no " + name + ", and is no training's state");
    }
  }
  EXPECT_EQ(error_with("model.token_embedding.weight", at::zeros({256, 31})),
            "model.token_embedding.weight (Float [256, 31]) must be Float [256, 32]");
}

TEST_F(ChangedCheckpoint, IsRefusedIfAValueIsNone) {
  const auto losses = [](double step, double loss) {
    return at::tensor(std::vector<double>{step, loss}, at::kDouble).view({1, 2});
  };
  EXPECT_EQ(error_with("held_out_losses", losses(2, 5)), "");
  for (const auto& wrong : {losses(-1, 5), losses(3, 5), losses(NAN, 5), losses(1, INFINITY)}) {
    EXPECT_EQ(error_with("held_out_losses", wrong),
              "held_out_losses must be finite, each with a step that was done");
  }
  const std::string training = "training_losses must be finite, and one a step";
  EXPECT_EQ(error_with("training_losses", at::full({2}, NAN, at::kDouble)), training);
  EXPECT_EQ(error_with("training_losses", at::zeros({4}, at::kDouble)), training);
  const auto step = "optimizer.step.token_embedding.weight";
  for (const int64_t wrong : {int64_t{-1}, int64_t{0}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(error_with(step, at::scalar_tensor(wrong, at::kLong)),
              step + std::string(" is out of range"));
  }
}

/// LibTorch would read beyond the state's numbers.
TEST_F(ChangedCheckpoint, IsRefusedIfItsGeneratorReadsTooFar) {
  const auto changed = [&](int64_t left, int64_t seeded, int64_t next) {
    auto state = tensors_.at("generator").clone();
    auto* bytes = state.mutable_data_ptr<uint8_t>();
    const auto first = static_cast<int32_t>(left), second = static_cast<int32_t>(seeded);
    std::memcpy(bytes + 8, &first, 4);
    std::memcpy(bytes + 12, &second, 4);
    std::memcpy(bytes + 16, &next, 8);
    return error_with("generator", state);
  };
  EXPECT_EQ(changed(1, 1, 0), "");
  EXPECT_EQ(changed(624, 1, 1), "");
  const std::string wrong = "generator is no generator's state";
  EXPECT_EQ(changed(10, 1, 624), wrong);
  EXPECT_EQ(changed(624, 1, 2), wrong);
  EXPECT_EQ(changed(0, 1, 0), wrong);
  EXPECT_EQ(changed(1, 0, 0), wrong);
  EXPECT_EQ(changed(1, 1, -1), wrong);
  EXPECT_EQ(changed(1, 1, INT64_MAX), wrong);
  EXPECT_EQ(error_with("generator", at::zeros({8}, at::kByte)), wrong);
}

TEST_F(ChangedCheckpoint, IsReadOrRefusedWhateverItsBytes) {
  std::ifstream file(path_, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto header = bytes.find("}}") + 2;  // where names and shapes stand
  std::mt19937 random(3);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };
  int read = 0;
  constexpr int kFiles = 200;
  for (int i = 0; i < kFiles; ++i) {
    auto changed = bytes;
    for (auto count = 1 + below(3); count > 0; --count) {
      changed[below(below(2) == 0 ? header : changed.size())] = "0123456789,]\"\xff"[below(14)];
    }
    if (below(4) == 0) changed.resize(below(changed.size()));
    write("changed", changed);
    try {
      Trainer trainer(trained_model(), training_, corpus_, at::kCPU, *team);
      trainer.load(Checkpoint(path_, *team));
      ++read;
    } catch (const std::exception&) {
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, kFiles);
}

/// Trains a tiny model, whose number of layers is its option.
class TinyTask : public TrainingTask {
 public:
  explicit TinyTask(CLI::App& app) {
    app.add_option("--layers", model_.layers)->check(CLI::Range(1, 4));
  }

  nlohmann::json recipe() const override { return {{"layers", model_.layers}}; }
  void take_recipe(const nlohmann::json& saved, const CLI::App& /*app*/) override {
    saved.at("layers").get_to(model_.layers);
  }
  TokenCorpus read_text(const std::string& path) override {
    return encode(read_corpus(path), *byte_codec());
  }
  TrainedModel model() const override {
    return {[=] { return make_gpt(model_); }, model_.context};
  }
  void write_model(const Decoder& /*model*/, double /*loss*/,
                   const LossHistory& /*history*/) override {}

 private:
  GptOptions model_ = small_options();
};

TEST_F(Language, RefusesOptionsInACheckpointThatTheCommandLineRefuses) {
  CommandLine app("", "tiny");
  RunOptions options;
  add_run_options(app, options, "");
  TinyTask task(app);
  options.out = folder_ / "run";
  options.text = write("text", std::string(400, 'a'));
  options.training.steps = 2;
  options.stop_after = 1;
  run_training(task, options, app, *team);
  options.resume = true;
  const auto path = options.checkpoint();
  auto tensors = read_weights(path);
  const auto about = Checkpoint(path, *team).about();
  tensors.erase("about");
  const auto error_with = [&](const std::string& pointer, const nlohmann::json& value) {
    auto changed = nlohmann::json::parse(about);
    changed[nlohmann::json::json_pointer(pointer)] = value;
    write_checkpoint(tensors, changed.dump(), path);
    try {
      run_training(task, options, app, *team);
    } catch (const std::runtime_error& error) {
      const std::string message = error.what(), begin = "cannot read " + path + ": ";
      EXPECT_EQ(message.substr(0, begin.size()), begin);
      return message.substr(std::min(message.size(), begin.size()));
    }
    return std::string();
  };
  const std::string whole = " must be a whole number from 1 to 1000000000000000, not ";
  EXPECT_EQ(error_with("/recipe/batch_size", 0), "--batch-size:" + whole + "0");
  EXPECT_EQ(error_with("/recipe/evaluate_every", 0), "--evaluate-every:" + whole + "0");
  EXPECT_EQ(error_with("/recipe/steps", -1), "--steps:" + whole + "-1");
  EXPECT_EQ(error_with("/recipe/steps", 1.5), "--steps:" + whole + "1.5");
  EXPECT_EQ(error_with("/recipe/steps", {1}), "--steps:" + whole + "[1]");
  EXPECT_EQ(error_with("/recipe/steps", "2"), "steps is no option");
  EXPECT_EQ(error_with("/recipe/text", 7), "text is no option");
  EXPECT_EQ(error_with("/recipe/learning_rate", 1e300),
            "--learning-rate: must be above 0 and at most 1e30, not 1e+300");
  EXPECT_EQ(error_with("/recipe/other", 1), "it has too many options");
  EXPECT_EQ(error_with("/recipe/layers", 3),
            "it has no model.stack.blocks.2.attention.fc_k.weight, and is no training's state");
  EXPECT_NE(error_with("/recipe", nlohmann::json::array()), "");
  EXPECT_NE(error_with("", std::string("about it")), "");
  EXPECT_EQ(error_with("/recipe/dtype", "float32"), "");
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

/// Adam's first step changes no number by more than the learning rate.
TEST_F(Language, TrainsABlockThatStandsTwiceOnce) {
  const TrainedModel trained{[] {
                               auto model = make_gpt(small_options());
                               auto& blocks = model->stack->blocks;
                               const auto first = blocks[0];
                               blocks = model->stack->replace_module(
                                   "blocks", torch::nn::ModuleList(first, first));
                               return model;
                             },
                             small_options().context};
  TrainingOptions training;
  training.warm_up = 0;
  training.weight_decay = 0.0;
  const auto text = std::string(200, 'a') + "bc";
  Trainer trainer(trained, training, bytes_of(text, text), at::kCPU, *team);
  auto model = trainer.model();
  const auto block = model->stack->blocks[0];
  int64_t in_block = 0, in_all = 0;
  for (const auto& parameter : block->parameters()) in_block += parameter.numel();
  for (const auto& parameter : model->parameters()) in_all += parameter.numel();
  EXPECT_EQ(trainer.parameters(), in_all - in_block);
  std::vector<at::Tensor> before;
  for (const auto& parameter : block->parameters()) before.push_back(parameter.detach().clone());
  trainer.step();
  double most = 0.0;
  for (size_t i = 0; i < before.size(); ++i) {
    most = std::max(most, (block->parameters()[i] - before[i]).abs().max().item<double>());
  }
  EXPECT_GT(most, 0.9 * training.learning_rate);
  EXPECT_LT(most, 1.01 * training.learning_rate);
}

TEST_F(Language, RefusesALossThatIsNotFinite) {
  const auto text = std::string(200, 'a') + "bc";
  const auto corpus = bytes_of(text, text);
  Trainer trainer(trained_model(), TrainingOptions(), corpus, at::kCPU, *team);
  const at::NoGradGuard no_grad;
  trainer.model()->parameters().front().fill_(NAN);
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
TEST(TrainedModel, KeepsItsPerplexityWithAnInt8Cache) {
  const char* folder = std::getenv("HEED_TRAINED_GPT");
  const char* text = std::getenv("HEED_TRAINED_TEXT");
  if (folder == nullptr || text == nullptr) GTEST_SKIP() << "needs a trained model";
  auto trained = load_language_model(folder);
  trained.model->eval();
  const auto held_out = joined(read_corpus(text).held_out);
  const auto exact = loss_with_cache(trained, held_out, {});
  const auto int8 = loss_with_cache(trained, held_out, CacheOptions().dtype(at::kChar));
  const auto change = std::exp(int8 - exact) - 1.0;
  std::cout << "perplexity " << std::exp(exact) << ", with int8 " << 100.0 * change << " % more\n";
  EXPECT_NE(int8, exact);
  EXPECT_LT(std::abs(change), 1e-3);
}

}  // namespace
}  // namespace heed::examples
