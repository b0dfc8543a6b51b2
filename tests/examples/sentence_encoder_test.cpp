// SPDX-License-Identifier: BSD-3-Clause
#include "sentences/sentence_encoder.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <vector>

#include "support/expect.h"
#include "support/seeds.h"

namespace heed::examples {
namespace {

using heed::test::is_close;

// Sums of some 20 rounded numbers of size 1, in another order.
constexpr double kTolerance = 1e-5;

const std::vector<Tokens> kSentences = {{2, 5, 7, 3}, {2, 3}, {2, 9, 8, 7, 6, 5, 4, 3}, {2, 5, 3}};

TextEncoder small_encoder() {
  torch::manual_seed(test::moved(3));
  const auto block = TransformerBlockOptions(GroupQueryAttentionOptions(8, 2, 2))
                         .norm_placement(NormPlacement::post)
                         .feed_forward(FeedForwardOptions(8).hidden_dim(12));
  return TextEncoder(
      TextEncoderOptions(/*vocab_size=*/10, EncoderOptions(block, 2))
          .positions(PositionEmbeddingOptions(8).kind(PositionKind::learned).max_length(8))
          .type_vocab_size(2)
          .embedding_norm(true));
}

TEST(SentenceEncoder, GivesTheSameVectorsPaddedAndAlone) {
  auto encoder = small_encoder();
  const auto padded = embed(encoder, pad(kSentences));
  EXPECT_EQ(padded.sizes(), at::IntArrayRef({4, 8}));
  EXPECT_TRUE(is_close(at::linalg_vector_norm(padded, 2, -1), at::ones(4), kTolerance));
  for (size_t i = 0; i < kSentences.size(); ++i) {
    const auto alone = embed(encoder, pad({kSentences[i]}));
    EXPECT_TRUE(is_close(alone[0], padded[static_cast<int64_t>(i)], kTolerance)) << i;
  }
}

TEST(SentenceEncoder, DependsOnEachTokenButNotOnThePadding) {
  auto encoder = small_encoder();
  const auto batch = pad(kSentences);
  const auto vectors = embed(encoder, batch);
  auto other = pad(kSentences);
  other.ids[1].slice(0, 2).fill_(9);  // behind the two tokens of the second sentence
  other.ids[3][1] = 6;
  const auto changed = embed(encoder, other);
  EXPECT_TRUE(is_close(changed.slice(0, 0, 3), vectors.slice(0, 0, 3), kTolerance));
  EXPECT_FALSE(is_close(changed[3], vectors[3], kTolerance));
}

}  // namespace
}  // namespace heed::examples
