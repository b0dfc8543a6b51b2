#pragma once

#include <heed/multi_head_attention.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "token_batch.h"

namespace heed::examples {

/// Sizes of a BERT encoder; the defaults are those of all-MiniLM-L6-v2.
struct SentenceEncoderOptions {
  int64_t vocabulary = 30522;
  int64_t positions = 512;
  int64_t types = 2;
  int64_t width = 384;
  int64_t heads = 12;
  int64_t blocks = 6;
  int64_t feed_forward = 1536;
  double eps = 1e-12;
  double dropout = 0.1;
};

/// The normalized sum of the embeddings of a token, its position and its type.
class TokenEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit TokenEmbeddingsImpl(const SentenceEncoderOptions& options);

  /// ids and positions, of shapes that broadcast: [..., E].
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& positions);

 private:
  torch::nn::Embedding token, position, type;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(TokenEmbeddings);

/// A post-norm transformer block: attention, then a feed-forward network, each with a residual
/// connection.
class EncoderBlockImpl : public torch::nn::Module {
 public:
  explicit EncoderBlockImpl(const SentenceEncoderOptions& options);

  /// x [B, L, E]; mask as in heed::AttendOptions; returns [B, L, E].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);

  /// Packed sentences x [T, E], each of which attends only to itself; returns [T, E].
  at::Tensor forward_packed(const at::Tensor& x, const at::Tensor& offsets);

 private:
  at::Tensor after_attention(const at::Tensor& x, const at::Tensor& attended);

  heed::MultiHeadAttention attention;
  torch::nn::LayerNorm attention_norm;
  torch::nn::Linear intermediate, output;
  torch::nn::LayerNorm output_norm;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(EncoderBlock);

/// Turns sentences into vectors of length 1, whose dot products are the similarities of the
/// sentences: BERT, then the mean over each sentence's tokens (Reimers and Gurevych 2019,
/// arXiv:1908.10084).
class SentenceEncoderImpl : public torch::nn::Module {
 public:
  explicit SentenceEncoderImpl(const SentenceEncoderOptions& options);

  /// Returns [B, E]. A padded batch and a packed batch give the same vectors.
  at::Tensor forward(const PaddedBatch& batch);
  at::Tensor forward(const PackedBatch& batch);

  const SentenceEncoderOptions options;

 private:
  TokenEmbeddings embeddings;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(SentenceEncoder);

/// Loads an encoder, in eval mode, from a folder in Hugging Face's format: config.json and
/// model.safetensors. Throws std::runtime_error or c10::Error when a file is missing or is not from
/// such a model.
SentenceEncoder load_sentence_encoder(const std::string& folder);

}  // namespace heed::examples
