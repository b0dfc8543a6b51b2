// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>

#include <string>
#include <vector>

namespace heed::examples {

/// Text as tokens: a character's token is its ASCII code, and ASCII's own control characters mark
/// where a text begins and ends.
constexpr int64_t kPadding = 0;
constexpr int64_t kBegin = 2;  // STX
constexpr int64_t kEnd = 3;    // ETX
constexpr int64_t kVocabulary = 128;

/// One text per row, each between kBegin and kEnd, padded with kPadding: [B, L], int64.
/// Throws std::runtime_error when a text is not ASCII or holds control characters.
at::Tensor to_tokens(const std::vector<std::string>& texts);

/// The text before kEnd in each row of tokens [B, L], without kBegin.
std::vector<std::string> to_texts(const at::Tensor& tokens);

/// Translates texts token by token: an encoder reads the source, and a decoder, which attends to
/// the encoder's output, writes the target. Vaswani et al. 2017 (arXiv:1706.03762).
class TranslatorImpl : public torch::nn::Module {
 public:
  TranslatorImpl();

  /// source [B, S] and target [B, L] are tokens. Returns the scores of the token after each token
  /// of target: [B, L, V].
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) const;

  /// Returns the target, the most likely token at each step, of up to `max_length` tokens: [B, L].
  at::Tensor translate(const at::Tensor& source, int64_t max_length) const;

  /// How much each token of target attends to each token of source, in every block: [B, N, H, L,
  /// S].
  at::Tensor cross_attention_weights(const at::Tensor& source, const at::Tensor& target) const;

 private:
  TransformerInputs encode(const at::Tensor& source) const;

  torch::nn::Embedding token_embedding;
  PositionEmbedding position_embedding;
  Encoder encoder;
  Decoder decoder;
};
TORCH_MODULE(Translator);

}  // namespace heed::examples
