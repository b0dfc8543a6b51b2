#pragma once

#include <heed/decoder.h>

namespace heed::examples {

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
