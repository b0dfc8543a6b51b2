// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/decoder.h>
#include <heed/feed_forward.h>
#include <heed/module.h>
#include <heed/norm.h>
#include <heed/pool_tokens.h>
#include <heed/text_encoder.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <variant>

namespace heed {

/// Options of `HeadTransform`.
struct HEED_API HeadTransformOptions {
  /// Required options.
  /* implicit */ HeadTransformOptions(int64_t emb_dim) : emb_dim_(emb_dim) {}
  HEED_NO_BOOL(HeadTransformOptions);
  /// E.
  HEED_NUMBER_ARG(int64_t, emb_dim);
  /// The activation behind the projection; none of the gated kinds.
  TORCH_ARG(Activation, activation) = Activation::gelu;
  /// Whether the projection adds a bias.
  TORCH_ARG(bool, bias) = true;
  /// The norm behind the activation; its dim must be E. None by default.
  TORCH_ARG(std::optional<NormOptions>, norm) = std::nullopt;
  /// Probability in [0, 1) of dropping an element of the input, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
};

/// The first layer of a head: norm(activation(dense(x))).
///
/// @code
/// auto options = heed::HeadTransformOptions(64).activation(heed::Activation::tanh);
/// heed::HeadTransform pooler(options);
/// auto y = pooler->forward(torch::randn({2, 64}));  // [B, E]
/// @endcode
///
/// Modules: dense, a Linear(E, E); norm, if there is one.
class HEED_API HeadTransformImpl : public Cloneable<HeadTransformImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit HeadTransformImpl(const HeadTransformOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., E]; returns the same shape.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x);

  /// The options given at construction.
  HeadTransformOptions options;
  torch::nn::Linear dense{nullptr};  ///< [E, E]
  Norm norm{nullptr};                ///< empty unless options.norm()
};
TORCH_MODULE(HeadTransform);

/// Options of a model that returns hidden states [B, L, E] of tokens [B, L]: an encoder, or a
/// decoder without a head.
using TokenModelOptions = std::variant<TextEncoderOptions, DecoderOptions>;

/// Options of `SequenceClassifier`.
struct HEED_API SequenceClassifierOptions {
  /// Required options, with an encoder, of which the first token is pooled by default.
  SequenceClassifierOptions(const TextEncoderOptions& encoder, int64_t num_labels)
      : model_(encoder), num_labels_(num_labels) {}
  /// Required options, with a decoder, which loses its head, and of which the last token is pooled
  /// by default.
  SequenceClassifierOptions(const DecoderOptions& decoder, int64_t num_labels)
      : model_(DecoderOptions(decoder).head(false)),
        num_labels_(num_labels),
        pooling_(Pooling::last) {}
  HEED_NO_BOOL(SequenceClassifierOptions);
  /// Options of the model whose hidden states are classified. A decoder must have no head.
  TORCH_ARG(TokenModelOptions, model);
  /// C, the number of labels. With one, the score is a number: of a reranker, how well a text
  /// answers a question.
  HEED_NUMBER_ARG(int64_t, num_labels);
  /// The vector of the hidden states that is classified.
  TORCH_ARG(Pooling, pooling) = Pooling::first;
  /// A token that does not count in pooling, as in transformers' decoders, which look for the last
  /// token that is another. None by default: what a mask or lengths hide does not count either.
  HEED_NUMBER_ARG(std::optional<int64_t>, padding_token) = std::nullopt;
  /// A layer between pooling and classifier; its emb_dim must be E. None by default.
  TORCH_ARG(std::optional<HeadTransformOptions>, transform) = std::nullopt;
  /// Whether the classifier adds a bias.
  TORCH_ARG(bool, bias) = true;
  /// Probability in [0, 1) of dropping an element of the classifier's input, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
};

/// Classifies sequences, such as texts or pairs of texts: classifier(transform(pooled states)).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
/// heed::SequenceClassifier model(heed::SequenceClassifierOptions(encoder, /*num_labels=*/3));
/// auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
/// auto scores = model->forward(torch::randint(100, {2, 10}), padding);  // [B, C]
/// @endcode
///
/// Modules: encoder, a TextEncoder, or decoder, a Decoder without a head; transform, if there is
/// one; classifier, a Linear(E, C).
class HEED_API SequenceClassifierImpl : public Cloneable<SequenceClassifierImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit SequenceClassifierImpl(const SequenceClassifierOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// tokens [B, L], inputs and types as TextEncoder or Decoder takes them. Returns scores [B, C],
  /// before softmax or sigmoid. Counted in pooling are the tokens that query_lengths, a padding
  /// mask [B or 1, 1, 1, L] and padding_token leave.
  /// Throws c10::ValueError when an input is invalid, when a decoder is given types, when documents
  /// are given, when a mask of another shape or key_lengths stand without query_lengths, and where
  /// processes share the sequence.
  at::Tensor forward(const at::Tensor& tokens, const TransformerInputs& inputs = {},
                     const std::optional<at::Tensor>& types = {});

  /// The options given at construction.
  SequenceClassifierOptions options;
  TextEncoder encoder{nullptr};           ///< empty if options.model() is a decoder
  Decoder decoder{nullptr};               ///< empty if options.model() is an encoder
  HeadTransform transform{nullptr};       ///< empty unless options.transform()
  torch::nn::Linear classifier{nullptr};  ///< [C, E]

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs, std::optional<at::Tensor>);
};
TORCH_MODULE(SequenceClassifier);

/// Options of `TokenClassifier`.
struct HEED_API TokenClassifierOptions {
  /// Required options, with an encoder.
  TokenClassifierOptions(const TextEncoderOptions& encoder, int64_t num_labels)
      : model_(encoder), num_labels_(num_labels) {}
  /// Required options, with a decoder, which loses its head.
  TokenClassifierOptions(const DecoderOptions& decoder, int64_t num_labels)
      : model_(DecoderOptions(decoder).head(false)), num_labels_(num_labels) {}
  HEED_NO_BOOL(TokenClassifierOptions);
  /// Options of the model whose hidden states are classified. A decoder must have no head.
  TORCH_ARG(TokenModelOptions, model);
  /// C, the number of labels.
  HEED_NUMBER_ARG(int64_t, num_labels);
  /// A layer before the classifier; its emb_dim must be E. None by default.
  TORCH_ARG(std::optional<HeadTransformOptions>, transform) = std::nullopt;
  /// Whether the classifier adds a bias.
  TORCH_ARG(bool, bias) = true;
  /// Probability in [0, 1) of dropping an element of the classifier's input, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
};

/// Classifies each token, to find names in a text for example: classifier(transform(states)).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
/// heed::TokenClassifier model(heed::TokenClassifierOptions(encoder, /*num_labels=*/9));
/// auto scores = model->forward(torch::randint(100, {2, 10}));  // [B, L, C]
/// @endcode
///
/// Modules: encoder, a TextEncoder, or decoder, a Decoder without a head; transform, if there is
/// one; classifier, a Linear(E, C).
class HEED_API TokenClassifierImpl : public Cloneable<TokenClassifierImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit TokenClassifierImpl(const TokenClassifierOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// tokens [B, L], inputs and types as TextEncoder or Decoder takes them. Returns scores
  /// [B, L, C], before softmax.
  /// Throws c10::ValueError when an input is invalid, or when a decoder is given types.
  at::Tensor forward(const at::Tensor& tokens, const TransformerInputs& inputs = {},
                     const std::optional<at::Tensor>& types = {});

  /// The options given at construction.
  TokenClassifierOptions options;
  TextEncoder encoder{nullptr};           ///< empty if options.model() is a decoder
  Decoder decoder{nullptr};               ///< empty if options.model() is an encoder
  HeadTransform transform{nullptr};       ///< empty unless options.transform()
  torch::nn::Linear classifier{nullptr};  ///< [C, E]

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs, std::optional<at::Tensor>);
};
TORCH_MODULE(TokenClassifier);

/// Options of `MaskedLanguageModel`.
struct HEED_API MaskedLanguageModelOptions {
  /// Required options. By default the transform has a layer_norm.
  explicit MaskedLanguageModelOptions(const TextEncoderOptions& encoder)
      : encoder_(encoder), transform_(encoder.stack().block().emb_dim()) {
    transform_.norm(NormOptions(transform_.emb_dim()));
  }
  /// Options of the encoder.
  TORCH_ARG(TextEncoderOptions, encoder);
  /// The layer between the hidden states and the scores; its emb_dim must be E.
  TORCH_ARG(HeadTransformOptions, transform);
  /// Whether the scores have a bias.
  TORCH_ARG(bool, bias) = true;
};

/// Scores of the token at each position, for texts with masked tokens: the products of
/// transform(states) with the token embeddings, as BERT is trained. Devlin et al. 2018
/// (arXiv:1810.04805).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::TextEncoderOptions encoder(/*vocab_size=*/100, stack);
/// heed::MaskedLanguageModel model{heed::MaskedLanguageModelOptions(encoder)};
/// auto scores = model->forward(torch::randint(100, {2, 10}));  // [B, L, V]
/// @endcode
///
/// Modules: encoder, a TextEncoder; transform, a HeadTransform. Parameter: output_bias, if there is
/// one.
class HEED_API MaskedLanguageModelImpl : public Cloneable<MaskedLanguageModelImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit MaskedLanguageModelImpl(const MaskedLanguageModelOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// tokens [B, L], inputs and types as TextEncoder takes them. Returns scores [B, L, V], before
  /// softmax.
  /// Throws c10::ValueError when an input is invalid.
  at::Tensor forward(const at::Tensor& tokens, const TransformerInputs& inputs = {},
                     const std::optional<at::Tensor>& types = {});

  /// The options given at construction.
  MaskedLanguageModelOptions options;
  TextEncoder encoder{nullptr};      ///< its token_embedding is also the last layer's weight
  HeadTransform transform{nullptr};  ///< before the last layer
  at::Tensor output_bias;            ///< [V]; undefined unless options.bias()

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs, std::optional<at::Tensor>);
};
TORCH_MODULE(MaskedLanguageModel);

}  // namespace heed
