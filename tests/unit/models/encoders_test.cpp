// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <heed/attention_pooling.h>
#include <heed/image_encoder.h>
#include <heed/masks.h>
#include <heed/text_encoder.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/any.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

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

/// Whether two outputs have the same gradients by the parameters.
bool gradients_agree(const at::Tensor& one, const at::Tensor& other,
                     const std::vector<at::Tensor>& parameters) {
  const auto weights = uniform(one.sizes(), one.scalar_type());
  const auto gradients = [&](const at::Tensor& output) {
    return torch::autograd::grad({(output * weights).sum()}, parameters);
  };
  const auto a = gradients(one), b = gradients(other);
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& mine, const auto& theirs) {
    // The gradient of the keys' bias is rounding alone: softmax cancels it.
    return (mine - theirs).abs().max().template item<double>() < 1e-12;
  });
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

TEST(TextEncoder, PoolsATokenOfEachText) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const auto options = bert_options().pooling(TextPooling::last);
  const auto tokens = at::tensor({3, 9, 4, 9, 7, 3, 8, 2, 9, 1}, at::kLong).view({2, 5});
  const auto expect_pools = [&](TextEncoder encoder, const at::Tensor& places) {
    const auto states = encoder->forward(tokens);
    const auto rows = at::stack({states[0][places[0]], states[1][places[1]]});
    EXPECT_TRUE(encoder->forward_pooled(tokens).equal(rows)) << printed(encoder);
  };
  expect_pools(TextEncoder(options), at::tensor({4, 4}));
  expect_pools(TextEncoder(TextEncoderOptions(options).pooling(TextPooling::largest)),
               at::tensor({1, 3}));
  expect_pools(TextEncoder(TextEncoderOptions(options).pooling(TextPooling::end).end_token(3)),
               at::tensor({0, 0}));
  expect_pools(TextEncoder(TextEncoderOptions(options).pooling(TextPooling::end).end_token(9)),
               at::tensor({1, 3}));
  TextEncoder projected(TextEncoderOptions(options).projection_dim(6).projection_bias(true));
  const auto last = projected->forward(tokens).select(1, 4);
  EXPECT_TRUE(
      is_close(projected->forward_pooled(tokens), linear64(projected->projection, last), 1e-6));
  EXPECT_EQ(printed(projected),
            "heed::TextEncoder(vocab_size=50, type_vocab_size=2, embedding_norm=true, "
            "pooling=last, projection_dim=6, projection_bias=true)");
}

TEST(TextEncoder, RefusesToPoolWhatDoesNotFit) {
  const auto pooled = [](TextPooling pooling) { return bert_options().pooling(pooling); };
  const auto tokens = at::ones({B, L}, at::kLong);
  TextEncoder end(pooled(TextPooling::end).end_token(4)), last(pooled(TextPooling::last));
  EXPECT_ERROR("TextEncoder: tokens must have end_token (4) in each text",
               end->forward_pooled(tokens));
  EXPECT_ERROR("TextEncoder: forward_pooled must have the option pooling",
               TextEncoder(bert_options())->forward_pooled(tokens));
  EXPECT_ERROR("TextEncoder: documents must not be given: one vector is pooled of each text",
               last->forward_pooled(tokens, TransformerInputs().documents(at::zeros_like(tokens))));
  EXPECT_ERROR(
      "TextEncoder: query_lengths must not be given with pooling (last), which may pool padding",
      last->forward_pooled(tokens, TransformerInputs().query_lengths(at::ones({B}, at::kLong))));
  EXPECT_ERROR("TextEncoder: tokens (50 to 50) must be at least 0 and below vocab_size (50)",
               end->forward_pooled(tokens * V));
  const auto error = [](const TextEncoderOptions& options) {
    return value_error([&] { TextEncoder{options}; });
  };
  EXPECT_EQ(error(pooled(TextPooling::end)),
            "TextEncoder: end_token must be given with pooling (end), and with no other");
  EXPECT_EQ(error(pooled(TextPooling::last).end_token(3)),
            "TextEncoder: end_token must be given with pooling (end), and with no other");
  EXPECT_EQ(error(pooled(TextPooling::end).end_token(V)),
            "TextEncoder: end_token (50) must be at least 0 and below vocab_size (50)");
  EXPECT_EQ(error(pooled(TextPooling::last).projection_dim(0)),
            "TextEncoder: projection_dim (0) must be at least 1");
  EXPECT_EQ(error(bert_options().projection_dim(4)),
            "TextEncoder: projection_dim (4) must not be given without pooling");
  EXPECT_EQ(error(pooled(TextPooling::largest).token_embedding(false)),
            "TextEncoder: pooling (largest) must not be given without token_embedding");
}

/// Registers have no positions, and stand between the class token and the patches.
TEST(ImageEncoder, HasRegistersAndPoolsItsClassToken) {
  torch::manual_seed(moved(6));
  const at::NoGradGuard no_grad;
  ImageEncoder encoder(ImageEncoderOptions(14, 4, EncoderOptions(block_options(E, H, H), 2))
                           .crop(true)
                           .patch_bias(false)
                           .register_num(2)
                           .embedding_norm(true)
                           .pooled_norm(true)
                           .projection_dim(6));
  const auto images = uniform({B, 3, 14, 14}, at::kFloat);
  const auto patches = at::conv2d(images, encoder->patch_embedding->weight, {}, /*stride=*/4)
                           .flatten(2)
                           .transpose(1, 2);
  EXPECT_FALSE(encoder->patch_embedding->bias.defined());
  const auto& positions = encoder->position_embedding;
  const auto first = (encoder->class_token + positions.narrow(1, 0, 1)).expand({B, 1, E});
  const auto x = at::cat(
      {first, encoder->registers.expand({B, 2, E}), patches + positions.narrow(1, 1, 9)}, 1);
  const auto expected = encoder->stack->forward(encoder->embedding_norm(x));
  // Products of up to 48 terms in another order; two blocks pass that on.
  EXPECT_TRUE(is_close(encoder(images), expected, 1e-5));
  const auto pooled = linear64(encoder->projection, encoder->pooled_norm(expected.select(1, 0)));
  EXPECT_TRUE(is_close(encoder->forward_pooled(images), pooled, 1e-5));
  EXPECT_EQ(printed(encoder),
            "heed::ImageEncoder(image_size=14, patch_size=4, crop=true, patch_bias=false, "
            "register_num=2, embedding_norm=true, pooled_norm=true, projection_dim=6)");
}

TEST(ImageEncoder, PoolsByAttention) {
  torch::manual_seed(moved(7));
  const at::NoGradGuard no_grad;
  const AttentionPoolingOptions pooling(GroupQueryAttentionOptions(E, H, H));
  const ImageEncoderOptions options(12, 4, EncoderOptions(block_options(E, H, H), 1));
  ImageEncoder encoder(ImageEncoderOptions(options).class_token(false).attention_pooling(pooling));
  const auto images = uniform({B, 3, 12, 12}, at::kFloat);
  EXPECT_EQ(encoder(images).sizes(), at::IntArrayRef({B, 9, E}));
  EXPECT_TRUE(encoder->forward_pooled(images).equal(encoder->attention_pooling(encoder(images))));
  EXPECT_ERROR(
      "ImageEncoder: forward_pooled must have a class_token or attention_pooling",
      ImageEncoder(ImageEncoderOptions(options).class_token(false))->forward_pooled(images));
  const auto error = [](const ImageEncoderOptions& wrong) {
    return value_error([&] { ImageEncoder{wrong}; });
  };
  EXPECT_EQ(error(ImageEncoderOptions(options).class_token(false).projection_dim(3)),
            "ImageEncoder: projection_dim must not be given without class_token and "
            "attention_pooling");
  EXPECT_EQ(error(ImageEncoderOptions(options).class_token(false).pooled_norm(true)),
            "ImageEncoder: pooled_norm must not be given without class_token and "
            "attention_pooling");
  EXPECT_EQ(error(ImageEncoderOptions(options).attention_pooling(
                AttentionPoolingOptions(GroupQueryAttentionOptions(8, 2, 2)))),
            "ImageEncoder: attention_pooling emb_dim (8) must equal attention emb_dim (32)");
  EXPECT_EQ(error(ImageEncoderOptions(options).register_num(-1)),
            "ImageEncoder: register_num (-1) must be at least 0");
  EXPECT_EQ(error(ImageEncoderOptions(3, 4, options.stack()).crop(true)),
            "ImageEncoder: image_size (3) must be at least patch_size (4)");
}

/// In float64, head by head, by a softmax of one row of scores.
TEST(AttentionPooling, IsItsDefinition) {
  torch::manual_seed(moved(8));
  AttentionPooling pooling(
      AttentionPoolingOptions(GroupQueryAttentionOptions(E, H, H)).norm_eps(0.1));
  pooling->to(at::kDouble);
  const auto x = uniform({B, L, E}, at::kDouble);
  const auto mask = at::tensor({1, 1, 0, 1, 1, 0, 1}).view({1, 1, 1, L});
  const auto& attention = *pooling->attention;
  const auto apply = [](const torch::nn::Linear& fc, const at::Tensor& input) {
    return input.matmul(fc->weight.t()) + fc->bias;
  };
  const auto heads = [&](const torch::nn::Linear& fc, const at::Tensor& input) {
    return apply(fc, input).unflatten(-1, {H, E / H}).transpose(1, 2);
  };
  for (const bool is_masked : {false, true}) {
    const auto query = heads(attention.fc_q, pooling->probe);  // [1, H, 1, D]
    auto scores = query.matmul(heads(attention.fc_k, x).transpose(2, 3)) / std::sqrt(E / H);
    if (is_masked) scores = scores.masked_fill(mask.eq(0), -1e300);
    const auto values = scores.softmax(-1).matmul(heads(attention.fc_v, x));
    const auto y = apply(attention.fc_o, values.transpose(1, 2).flatten(2)).squeeze(1);
    const auto centered = y - y.mean(-1, true);
    const auto normalized =
        centered / (centered.square().mean(-1, true) + 0.1).sqrt() * pooling->norm->weight +
        pooling->norm->bias;
    const auto& layer = *pooling->feed_forward;
    const auto expected = y + apply(layer.fc_out, at::gelu(apply(layer.fc_in, normalized)));
    const auto actual =
        is_masked ? pooling->forward(x, std::optional<at::Tensor>(mask)) : pooling->forward(x);
    EXPECT_TRUE(is_close(actual, expected, 1e-12));
    EXPECT_TRUE(gradients_agree(actual, expected, pooling->parameters()));
  }
  EXPECT_EQ(printed(pooling), "heed::AttentionPooling(emb_dim=32, norm_eps=0.1)");
  EXPECT_ERROR("AttentionPooling: x rank (2) must equal 3; x [7, 32]", pooling->forward(x[0]));
  EXPECT_ERROR("AttentionPooling: feed_forward emb_dim (8) must equal attention emb_dim (32)",
               AttentionPooling(AttentionPoolingOptions(GroupQueryAttentionOptions(E, H, H))
                                    .feed_forward(FeedForwardOptions(8))));
}

}  // namespace
}  // namespace heed::test::encoders
