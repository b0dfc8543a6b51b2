// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/module.h>
#include <heed/position_embedding.h>
#include <heed/transformer.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <ostream>
#include <string_view>

namespace heed {

/// The token whose vector stands for a text, in `TextEncoder::forward_pooled`.
enum class TextPooling {
  last,     ///< the last one, also where it is padding. Zhai et al. 2023 (arXiv:2303.15343)
  end,      ///< the first end_token. Radford et al. 2021 (arXiv:2103.00020)
  largest,  ///< the first of those with the largest number, as in files of before 2023
};

/// Returns the pooling's name, such as "end".
HEED_API std::string_view to_string(TextPooling pooling);

/// Options of `TextEncoder`.
struct HEED_API TextEncoderOptions {
  /// Required options.
  TextEncoderOptions(int64_t vocab_size, const EncoderOptions& stack)
      : vocab_size_(vocab_size), stack_(stack) {}
  HEED_NO_BOOL(TextEncoderOptions);
  /// V, the number of different tokens.
  HEED_NUMBER_ARG(int64_t, vocab_size);
  /// Options of the stack of blocks.
  TORCH_ARG(EncoderOptions, stack);
  /// The size of the embeddings, which a Linear projects to E after their norm. E by default, and
  /// then there is no projection. Clark et al. 2020 (arXiv:2003.10555).
  HEED_NUMBER_ARG(std::optional<int64_t>, embedding_dim) = std::nullopt;
  /// Whether there is a token embedding. If not, `forward` takes embeddings [B, L, E] in place of
  /// tokens: of a model that has them already, such as an EncoderDecoder.
  TORCH_ARG(bool, token_embedding) = true;
  /// Factor on the token embeddings, finite and not 0, rounded to their dtype.
  HEED_NUMBER_ARG(double, embedding_scale) = 1.0;
  /// Position embedding that is added to the token embeddings; none by default.
  TORCH_ARG(std::optional<PositionEmbeddingOptions>, positions) = std::nullopt;
  /// A token that takes no position, as in RoBERTa: positions count the other tokens, from
  /// padding_token + 1, and padding has position padding_token. By default, all tokens are counted,
  /// from 0. Positions that are given in the inputs are taken as they are.
  HEED_NUMBER_ARG(std::optional<int64_t>, padding_token) = std::nullopt;
  /// The number of token types, such as the first and the second sentence of a pair; 0: none.
  HEED_NUMBER_ARG(int64_t, type_vocab_size) = 0;
  /// Whether there is a norm after the sum of the embeddings, of the kind of the blocks' norms.
  TORCH_ARG(bool, embedding_norm) = false;
  /// Probability in [0, 1) of dropping an element of an embedding, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// The token whose vector `forward_pooled` returns; none by default.
  TORCH_ARG(std::optional<TextPooling>, pooling) = std::nullopt;
  /// The token that ends a text, with TextPooling::end alone.
  HEED_NUMBER_ARG(std::optional<int64_t>, end_token) = std::nullopt;
  /// The size to which a Linear projects this vector, by which texts and images become comparable;
  /// none by default.
  HEED_NUMBER_ARG(std::optional<int64_t>, projection_dim) = std::nullopt;
  /// Whether this Linear adds a bias.
  TORCH_ARG(bool, projection_bias) = false;
};

/// An encoder of tokens, such as BERT: embeds them, and returns a vector for each, which depends on
/// all tokens of its sequence. Devlin et al. 2018 (arXiv:1810.04805).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::TextEncoder encoder(heed::TextEncoderOptions(/*vocab_size=*/100, stack));
/// auto tokens = torch::randint(100, {2, 10});  // [B, L]
/// auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
/// auto y = encoder->forward(tokens, padding);  // [B, L, E]
/// @endcode
///
/// Modules: token_embedding, an Embedding(V, E), if there is one; position_embedding, if
/// options.positions() is set; type_embedding, an Embedding(type_vocab_size, E), if there are
/// types; embedding_norm, if there is one; stack, an Encoder. If options.embedding_dim() is another
/// size than E, the embeddings have it, and embedding_projection is a Linear(embedding_dim, E).
/// projection is a Linear(E, projection_dim), if there is one.
class HEED_API TextEncoderImpl : public Cloneable<TextEncoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit TextEncoderImpl(const TextEncoderOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does, including the embeddings.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// tokens [B, L], int64 in [0, V), or, without a token embedding, embeddings [B, L, E] before
  /// embedding_scale; inputs: a mask, or a TransformerInputs; types [B, L], int64 in
  /// [0, type_vocab_size), all 0 by default. Returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype, device, token or type is invalid.
  at::Tensor forward(const at::Tensor& tokens, const TransformerInputs& inputs = {},
                     const std::optional<at::Tensor>& types = {});

  /// Inputs as those of `forward`; returns a vector for each text, [B, E] or
  /// [B, options.projection_dim()].
  /// Throws as `forward` does. Also when there is no option pooling, when documents are given, with
  /// TextPooling::last when query_lengths are, where processes share the sequence, and, on the CPU,
  /// when a text has no end_token. On other devices the vector of such a text is 0.
  at::Tensor forward_pooled(const at::Tensor& tokens, const TransformerInputs& inputs = {},
                            const std::optional<at::Tensor>& types = {});

  /// The options given at construction.
  TextEncoderOptions options;
  torch::nn::Embedding token_embedding{
      nullptr};  ///< [V, E] or [V, options.embedding_dim()]; may be empty
  PositionEmbedding position_embedding{nullptr};    ///< empty unless options.positions()
  torch::nn::Embedding type_embedding{nullptr};     ///< empty unless options.type_vocab_size()
  Norm embedding_norm{nullptr};                     ///< empty unless options.embedding_norm()
  torch::nn::Linear embedding_projection{nullptr};  ///< empty if the embeddings have size E
  Encoder stack{nullptr};                           ///< the blocks
  torch::nn::Linear projection{nullptr};            ///< empty unless options.projection_dim()

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs, std::optional<at::Tensor>);

 private:
  HEED_LOCAL void check_pooling_options() const;
  HEED_LOCAL void check_tokens(const at::Tensor& tokens) const;
  HEED_LOCAL void check_types(const at::Tensor& tokens,
                              const std::optional<at::Tensor>& types) const;
  HEED_LOCAL std::optional<at::Tensor> positions_of(const at::Tensor& tokens,
                                                    const TransformerInputs& inputs) const;
  HEED_LOCAL at::Tensor embed(const at::Tensor& tokens, const TransformerInputs& inputs,
                              const std::optional<at::Tensor>& types) const;
  HEED_LOCAL std::optional<at::Tensor> pooled_tokens(const at::Tensor& tokens) const;
};
TORCH_MODULE(TextEncoder);

}  // namespace heed
