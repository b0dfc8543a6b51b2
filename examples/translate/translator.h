#pragma once

#include <heed/decoder.h>

namespace heed::examples {

/// Texts to texts, token by token: an encoder reads the source, and a decoder that attends to what
/// the encoder made of it writes the target. Vaswani et al. 2017 (arXiv:1706.03762).
class TranslatorImpl : public torch::nn::Module {
 public:
  TranslatorImpl();

  /// source [B, S] and target [B, L], tokens; returns scores of the tokens after each of target's,
  /// [B, L, V].
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) const;

  /// The most likely target, one token after the other, of up to `max_length` tokens: [B, L].
  at::Tensor translate(const at::Tensor& source, int64_t max_length) const;

  /// How much each of target's tokens looks at each of source's, in every block: [B, N, H, L, S].
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
