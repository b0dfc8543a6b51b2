// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <heed/pretrained.h>
#include <torch/utils.h>

#include <filesystem>
#include <string>
#include <vector>

#include "parity/fixture.h"
#include "sentences/sentence_encoder.h"
#include "sentences/word_piece.h"
#include "support/expect.h"

namespace heed::examples {
namespace {

constexpr size_t kMaxLength = 256;
// Elements are some 0.05; six blocks in float32, in another order than Python's, leave 1e-7.
constexpr double kTolerance = 1e-5;

/// The texts in `bytes`, a byte 255 after each.
std::vector<std::string> split_texts(const at::Tensor& bytes) {
  std::vector<std::string> texts(1);
  for (const auto byte : std::string(static_cast<const char*>(bytes.const_data_ptr()),
                                     static_cast<size_t>(bytes.numel()))) {
    if (byte == '\xff') {
      texts.emplace_back();
    } else {
      texts.back() += byte;
    }
  }
  texts.pop_back();
  return texts;
}

class MiniLm : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto reason = test::why_no_fixtures();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  /// The texts with their tokens and embeddings, as Python computes them.
  const test::Fixture& python() const {
    static const test::Fixture fixture(test::fixture_path("minilm.pt"));
    return fixture;
  }

  std::string model() const { return split_texts(python()["model"]).at(0); }

  std::vector<Tokens> encode(const std::vector<std::string>& texts) const {
    const WordPieceTokenizer tokenizer(model() + "/vocab.txt");
    std::vector<Tokens> result;
    for (const auto& text : texts) result.push_back(tokenizer.encode(text, kMaxLength));
    return result;
  }

  /// `prefix` and "texts" are tokenized to `prefix` and "tokens".
  void expect_same_tokens(const std::string& prefix) const {
    const auto texts = split_texts(python()[prefix + "texts"]);
    const auto batch = pad(encode(texts));
    const auto& tokens = python()[prefix + "tokens"];
    if (batch.ids.equal(tokens) && batch.lengths.equal(python()[prefix + "lengths"])) return;
    ASSERT_EQ(batch.ids.sizes(), tokens.sizes());
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      ASSERT_TRUE(batch.ids[row].equal(tokens[row])) << texts[i] << '\n'
                                                     << batch.ids[row] << '\n'
                                                     << tokens[row];
    }
    FAIL() << "lengths differ";
  }
};

TEST_F(MiniLm, TokenizesAsPythonDoes) {
  expect_same_tokens("");
  expect_same_tokens("characters.");
}

TEST_F(MiniLm, EmbedsAsPythonDoes) {
  const torch::NoGradGuard no_grad;
  auto encoder = load_pretrained<TextEncoder>(model());
  const auto sentences = encode(split_texts(python()["texts"]));
  ASSERT_EQ(sentences.size(), 100u);
  for (const auto device : test::devices()) {
    encoder->to(device);
    const auto vectors = embed(encoder, pad(sentences).to(device));
    EXPECT_TRUE(test::is_close(vectors.cpu(), python()["embeddings"], kTolerance));
  }
}

}  // namespace
}  // namespace heed::examples
