#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/image_encoder.h>
#include <heed/masks.h>
#include <heed/text_encoder.h>
#include <torch/nn/modules/container/any.h>
#include <torch/utils.h>

#include <memory>
#include <optional>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::encoders {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, L = 7, V = 50;

EncoderOptions bert_stack() {
  return {block_options(E, H, H).norm_placement(NormPlacement::post).norm_eps(1e-3), 2};
}

TextEncoderOptions bert_options() {
  return TextEncoderOptions(V, bert_stack())
      .positions(PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(16))
      .type_vocab_size(2)
      .embedding_norm(true);
}

TEST(TextEncoder, AddsTheEmbeddingsOfTokensPositionsAndTypes) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  TextEncoder encoder(bert_options());
  const auto tokens = at::randint(V, {B, L}, at::kLong), types = at::randint(2, {B, L}, at::kLong);
  const auto padding = padding_mask(at::tensor({L, int64_t{4}}), L);
  const auto embedded = [&](const at::Tensor& of_types) {
    return encoder->embedding_norm(encoder->token_embedding(tokens) +
                                   encoder->position_embedding->weight.narrow(0, 0, L) +
                                   encoder->type_embedding(of_types));
  };
  // The three embeddings are added in one order or another; two blocks pass that on.
  EXPECT_TRUE(is_close(encoder->forward(tokens, padding, types),
                       encoder->stack->forward(embedded(types), padding), 1e-5));
  EXPECT_TRUE(is_close(encoder->forward(tokens, padding),
                       encoder->stack->forward(embedded(at::zeros_like(tokens)), padding), 1e-5));
  EXPECT_FALSE(is_close(encoder->forward(tokens), encoder->forward(tokens, {}, types), 1e-2));
  EXPECT_EQ(encoder->embedding_norm->options.eps(), 1e-3);
  EXPECT_EQ(printed(encoder),
            "heed::TextEncoder(vocab_size=50, type_vocab_size=2, embedding_norm=true)");
}

/// RoBERTa's padding is token 1: the first token stands at 2, and padding at 1.
TEST(TextEncoder, CountsNoPadding) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  TextEncoder counted(bert_options().padding_token(1)), plain(bert_options());
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    plain->parameters()[i].copy_(counted->parameters()[i]);
  }
  const auto tokens = at::tensor({1, 1, 7, 8, 9, 1, 3}, at::kLong).unsqueeze(0);
  const auto positions = at::tensor({1, 1, 2, 3, 4, 1, 5}, at::kLong);
  const auto moved = plain->position_embedding->weight.index_select(0, positions);
  plain->position_embedding->weight.narrow(0, 0, L).copy_(moved);
  EXPECT_TRUE(counted(tokens).equal(plain(tokens)));
}

/// ELECTRA's embeddings are narrower than its blocks.
TEST(TextEncoder, ProjectsItsEmbeddings) {
  torch::manual_seed(moved(4));
  constexpr int64_t kNarrow = 12;
  const at::NoGradGuard no_grad;
  const auto positions =
      PositionEmbeddingOptions(kNarrow).kind(PositionKind::learned).max_length(16);
  TextEncoder encoder(bert_options().embedding_dim(kNarrow).positions(positions));
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto embedded = encoder->embedding_norm(
      encoder->token_embedding(tokens) + encoder->position_embedding->weight.narrow(0, 0, L) +
      encoder->type_embedding->weight[0]);
  const auto& projection = *encoder->embedding_projection;
  ASSERT_EQ(projection.weight.sizes(), at::IntArrayRef({E, kNarrow}));
  // Products of 12 terms in another order; two blocks pass that on.
  const auto x = embedded.matmul(projection.weight.t()) + projection.bias;
  EXPECT_TRUE(is_close(encoder->forward(tokens), encoder->stack->forward(x), 1e-5));
  const auto copy = std::dynamic_pointer_cast<TextEncoderImpl>(encoder->clone());
  EXPECT_TRUE(copy->forward(tokens).equal(encoder->forward(tokens)));
  EXPECT_EQ(printed(encoder),
            "heed::TextEncoder(vocab_size=50, embedding_dim=12, type_vocab_size=2, "
            "embedding_norm=true)");
  EXPECT_FALSE(TextEncoder(bert_options().embedding_dim(E))->embedding_projection);
  EXPECT_ERROR("TextEncoder: embedding_dim (0) must be at least 1",
               TextEncoder(bert_options().embedding_dim(0)));
  EXPECT_ERROR("TextEncoder: positions emb_dim (32) must equal embedding_dim (12)",
               TextEncoder(bert_options().embedding_dim(kNarrow)));
}

TEST(TextEncoder, TakesAMaskAndTypesInAnyModule) {
  TextEncoder encoder(bert_options());
  encoder->eval();
  torch::nn::AnyModule any(encoder);
  const auto tokens = at::arange(8).view({2, 4}), types = tokens.remainder(2);
  const auto mask = causal_mask(4, 4);
  EXPECT_TRUE(any.forward(tokens, mask).equal(encoder(tokens, mask)));
  EXPECT_TRUE(any.forward(tokens, mask, types).equal(encoder(tokens, mask, types)));
  EXPECT_TRUE(
      any.forward(tokens, std::nullopt, types).equal(encoder(tokens, TransformerInputs(), types)));
}

TEST(TextEncoder, RefusesWhatDoesNotFit) {
  TextEncoder encoder(bert_options());
  const auto tokens = at::ones({B, L}, at::kLong);
  const auto types_error = [&](TextEncoder& model, const at::Tensor& types) {
    return value_error([&] { model->forward(tokens, {}, types); });
  };
  EXPECT_ERROR("TextEncoder: tokens (50 to 50) must be at least 0 and below vocab_size (50)",
               encoder(tokens * V));
  EXPECT_EQ(types_error(encoder, tokens * 2),
            "TextEncoder: types (2 to 2) must be at least 0 and below type_vocab_size (2)");
  EXPECT_EQ(types_error(encoder, tokens.narrow(1, 0, 3)),
            "TextEncoder: types [2, 3] must have the sizes of tokens [2, 7]");
  TextEncoder without(TextEncoderOptions(V, bert_stack()));
  EXPECT_EQ(types_error(without, tokens),
            "TextEncoder: types must be absent: type_vocab_size is 0");
  const auto error = [](const TextEncoderOptions& options) {
    return value_error([&] { TextEncoder{options}; });
  };
  EXPECT_EQ(error(TextEncoderOptions(0, bert_stack())),
            "TextEncoder: vocab_size (0) must be at least 1");
  EXPECT_EQ(error(bert_options().padding_token(V)),
            "TextEncoder: padding_token (50) must be at least 0 and below vocab_size (50)");
  EXPECT_EQ(error(bert_options().type_vocab_size(-1)),
            "TextEncoder: type_vocab_size (-1) must be at least 0");
  EXPECT_EQ(error(bert_options().positions(PositionEmbeddingOptions(8))),
            "TextEncoder: positions emb_dim (8) must equal attention emb_dim (32)");
}

/// Patches by LibTorch's convolution.
TEST(ImageEncoder, EmbedsPatchesBehindAClassToken) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  for (const int64_t channels : {1, 3}) {
    ImageEncoder encoder(
        ImageEncoderOptions(12, 4, EncoderOptions(block_options(E, H, H), 2)).channels(channels));
    const auto images = uniform({B, channels, 12, 12}, at::kFloat);
    const auto& conv = encoder->patch_embedding;
    const auto patches =
        at::conv2d(images, conv->weight, conv->bias, /*stride=*/4).flatten(2).transpose(1, 2);
    const auto x =
        at::cat({encoder->class_token.expand({B, 1, E}), patches}, 1) + encoder->position_embedding;
    // Products of up to 48 terms in another order; two blocks pass that on.
    EXPECT_TRUE(is_close(encoder(images), encoder->stack->forward(x), 1e-5)) << channels;
    EXPECT_EQ(encoder(images).sizes(), at::IntArrayRef({B, 10, E}));
  }
}

TEST(ImageEncoder, RefusesWhatDoesNotFit) {
  const EncoderOptions stack(block_options(E, H, H), 1);
  ImageEncoder encoder(ImageEncoderOptions(12, 4, stack));
  EXPECT_EQ(printed(encoder), "heed::ImageEncoder(image_size=12, patch_size=4)");
  EXPECT_ERROR("ImageEncoder: images must be [B, 3, 12, 12]; images [2, 3, 12, 8]",
               encoder(at::ones({B, 3, 12, 8})));
  EXPECT_ERROR("ImageEncoder: images dtype (Double) must equal weight dtype (Float)",
               encoder(at::ones({B, 3, 12, 12}, at::kDouble)));
  EXPECT_ERROR("ImageEncoder: image_size (12) must be a multiple of patch_size (5)",
               ImageEncoder(ImageEncoderOptions(12, 5, stack)));
  EXPECT_ERROR("ImageEncoder: channels (0) must be at least 1",
               ImageEncoder(ImageEncoderOptions(12, 4, stack).channels(0)));
}

}  // namespace
}  // namespace heed::test::encoders
