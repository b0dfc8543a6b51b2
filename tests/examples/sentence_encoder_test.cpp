#include "sentences/sentence_encoder.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/expect.h"

namespace heed::examples {
namespace {

using heed::test::is_close;

// Sums of some 20 rounded numbers of size 1, in another order.
constexpr double kTolerance = 1e-5;

const std::vector<Tokens> kSentences = {{2, 5, 7, 3}, {2, 3}, {2, 9, 8, 7, 6, 5, 4, 3}, {2, 5, 3}};

SentenceEncoder small_encoder() {
  torch::manual_seed(3);
  SentenceEncoderOptions options;
  options.vocabulary = 10;
  options.positions = 8;
  options.width = 8;
  options.heads = 2;
  options.blocks = 2;
  options.feed_forward = 12;
  options.dropout = 0;
  return SentenceEncoder(options);
}

TEST(SentenceEncoder, GivesTheSameVectorsPaddedPackedAndAlone) {
  auto encoder = small_encoder();
  const auto padded = encoder->forward(pad(kSentences));
  EXPECT_EQ(padded.sizes(), at::IntArrayRef({4, 8}));
  EXPECT_TRUE(is_close(at::linalg_vector_norm(padded, 2, -1), at::ones(4), kTolerance));
  EXPECT_TRUE(is_close(encoder->forward(pack(kSentences)), padded, kTolerance));
  for (size_t i = 0; i < kSentences.size(); ++i) {
    const auto alone = encoder->forward(pad({kSentences[i]}));
    EXPECT_TRUE(is_close(alone[0], padded[static_cast<int64_t>(i)], kTolerance)) << i;
  }
}

TEST(SentenceEncoder, LearnsTheSamePaddedAndPacked) {
  auto encoder = small_encoder();
  const auto loss_weight = at::randn({4, 8});
  const auto gradients = [&](const at::Tensor& vectors) {
    return torch::autograd::grad({(vectors * loss_weight).sum()}, encoder->parameters());
  };
  const auto padded = gradients(encoder->forward(pad(kSentences)));
  const auto packed = gradients(encoder->forward(pack(kSentences)));
  for (size_t i = 0; i < padded.size(); ++i) {
    EXPECT_TRUE(is_close(packed[i], padded[i], kTolerance)) << encoder->named_parameters()[i].key();
  }
  EXPECT_GT(padded[0].abs().max().item<double>(), 0);
}

std::string load_error(const std::string& folder) {
  try {
    load_sentence_encoder(folder);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(SentenceEncoder, SaysWhatIsWrongWithAFolder) {
  auto unique = ::testing::TempDir() + "heed_sentence_encoder_XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(unique.data());
  const auto path = (folder / "config.json").string();
  EXPECT_EQ(load_error(folder), "cannot read " + path + ": No such file or directory");
  std::ofstream(path) << "{";
  EXPECT_EQ(load_error(folder), path + " is not JSON");
  std::ofstream(path) << R"({"hidden_act": "relu"})";
  EXPECT_EQ(load_error(folder), path + ": hidden_act (relu) must be gelu");
  std::ofstream(path) << R"({"hidden_act": "gelu"})";
  EXPECT_EQ(load_error(folder), path + " is no configuration of BERT: key 'vocab_size' not found");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace heed::examples
