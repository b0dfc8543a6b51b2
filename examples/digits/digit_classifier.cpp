// SPDX-License-Identifier: BSD-3-Clause
#include "digit_classifier.h"

#include <ATen/Functions.h>
#include <heed/heed.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <tuple>

namespace heed::examples {

namespace {

constexpr int64_t kSide = 8;    // of an image, in pixels
constexpr int64_t kWidth = 64;  // of a token
constexpr int64_t kHeads = 4;
constexpr int64_t kGroups = 2;
constexpr int64_t kDigits = 10;

torch::nn::LayerNorm layer_norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

/// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(x).
template <typename Attention>
class Block : public torch::nn::Module {
 public:
  template <typename Options>
  explicit Block(const Options& options)
      : attention(register_module("attention", Attention(options))),
        norm(register_module("norm", layer_norm())),
        mlp(register_module("mlp", torch::nn::Sequential(
                                       layer_norm(), torch::nn::Linear(kWidth, 2 * kWidth),
                                       torch::nn::GELU(), torch::nn::Linear(2 * kWidth, kWidth)))) {
  }

  at::Tensor forward(const at::Tensor& input) {
    const auto x = input + attention(norm(input));
    return x + mlp->forward(x);
  }

  /// [B, H, L, L]
  at::Tensor weights(const at::Tensor& x) {
    const auto weights = std::get<1>(attention->forward_with_weights(norm(x)));
    return weights.dim() == 3 ? weights.unsqueeze(1) : weights;  // one head has no head axis
  }

 private:
  Attention attention;
  torch::nn::LayerNorm norm;
  torch::nn::Sequential mlp;
};

/// Rows as tokens, with learned positions -> two blocks -> mean over the rows -> scores.
template <typename Attention>
class RowClassifier : public DigitClassifier {
 public:
  template <typename Options>
  explicit RowClassifier(const Options& options)
      : embed(register_module("embed", torch::nn::Linear(kSide, kWidth))),
        position(register_parameter("position", at::randn({kSide, kWidth}) / 2)),
        first(register_module("first", std::make_shared<Block<Attention>>(options))),
        second(register_module("second", std::make_shared<Block<Attention>>(options))),
        classify(register_module(
            "classify", torch::nn::Sequential(layer_norm(), torch::nn::Linear(kWidth, kDigits)))) {}

  at::Tensor forward(const at::Tensor& images) override {
    const auto rows = second->forward(first->forward(embed(images) + position));  // [B, 8, kWidth]
    return classify->forward(rows.mean(1));
  }

  at::Tensor attention_maps(const at::Tensor& images) override {
    return second->weights(first->forward(embed(images) + position));
  }

  std::string map_rows() const override { return "query row"; }
  std::string map_columns() const override { return "key row"; }

 private:
  torch::nn::Linear embed;
  at::Tensor position;
  std::shared_ptr<Block<Attention>> first, second;
  torch::nn::Sequential classify;
};

/// Patches of 2 by 2 pixels as tokens, with learned positions -> heed's encoder -> mean over the
/// patches -> scores. Dosovitskiy et al. 2021 (arXiv:2010.11929).
class VisionTransformer : public DigitClassifier {
 public:
  VisionTransformer()
      : embed(register_module("embed", torch::nn::Linear(kPatch * kPatch, kWidth))),
        position(register_module("position", PositionEmbedding(positions()))),
        encoder(register_module("encoder", Encoder(EncoderOptions(block(), kLayers)))),
        classify(register_module("classify", torch::nn::Linear(kWidth, kDigits))) {
    // heed's initial weights suit large models; a model as small as this learns faster from larger
    // weights.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : encoder->parameters()) {
      if (parameter.dim() == 2) parameter.mul_(5);
    }
    position->weight.normal_(0, 0.5);
  }

  at::Tensor forward(const at::Tensor& images) override {
    return classify(encoder(tokens(images)).mean(1));
  }

  /// How much all patches attend to each patch, drawn at the patch's size.
  at::Tensor attention_maps(const at::Tensor& images) override {
    const auto& blocks = *encoder->blocks;
    auto x = tokens(images);
    for (size_t i = 0; i + 1 < blocks.size(); ++i) {
      x = blocks.ptr<TransformerBlockImpl>(i)->forward(x);
    }
    const auto last = blocks.ptr<TransformerBlockImpl>(blocks.size() - 1);
    const auto weights =
        std::get<1>(last->attention->forward_with_weights(last->attention_norm(x)));
    return weights
        .mean(2)  // [B, H, 16]
        .unflatten(2, {kGrid, kGrid})
        .repeat_interleave(kPatch, 2)
        .repeat_interleave(kPatch, 3);
  }

  std::string map_rows() const override { return "pixel row"; }
  std::string map_columns() const override { return "pixel column"; }

 private:
  static constexpr int64_t kPatch = 2;  // pixels
  static constexpr int64_t kGrid = kSide / kPatch;
  static constexpr int64_t kLayers = 2;

  static PositionEmbeddingOptions positions() {
    return PositionEmbeddingOptions(kWidth).kind(PositionKind::learned).max_length(kGrid * kGrid);
  }

  static TransformerBlockOptions block() {
    return TransformerBlockOptions(GroupQueryAttentionOptions(kWidth, kHeads, kHeads))
        .feed_forward(FeedForwardOptions(kWidth).hidden_dim(2 * kWidth));
  }

  /// [B, 16, kWidth]
  at::Tensor tokens(const at::Tensor& images) {
    const auto patches = images.view({-1, kGrid, kPatch, kGrid, kPatch})
                             .transpose(2, 3)
                             .reshape({-1, kGrid * kGrid, kPatch * kPatch});
    return position(embed(patches));
  }

  torch::nn::Linear embed;
  PositionEmbedding position;
  Encoder encoder;
  torch::nn::Linear classify;
};

}  // namespace

std::shared_ptr<DigitClassifier> make_digit_classifier(const std::string& attention) {
  if (attention == "vision_transformer") return std::make_shared<VisionTransformer>();
  if (attention == "attention") {
    return std::make_shared<RowClassifier<Attention>>(AttentionOptions(kWidth));
  }
  if (attention == "attention_v1") {
    return std::make_shared<RowClassifier<AttentionV1>>(AttentionOptions(kWidth));
  }
  if (attention == "multi_head") {
    return std::make_shared<RowClassifier<MultiHeadAttention>>(
        MultiHeadAttentionOptions(kWidth, kHeads));
  }
  return std::make_shared<RowClassifier<GroupQueryAttention>>(
      GroupQueryAttentionOptions(kWidth, kHeads, kGroups));
}

}  // namespace heed::examples
