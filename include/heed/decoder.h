#pragma once

#include <heed/position_embedding.h>
#include <heed/transformer.h>
#include <torch/nn/modules/embedding.h>

#include <optional>
#include <tuple>
#include <vector>

namespace heed {

/// Options of `Decoder`.
struct HEED_API DecoderOptions {
  /// Required options.
  DecoderOptions(int64_t vocab_size, const TransformerBlockOptions& block, int64_t num_layers)
      : vocab_size_(vocab_size), stack_(block, num_layers) {
    stack_.block().attention().causal(true);
  }
  /// V.
  TORCH_ARG(int64_t, vocab_size);
  /// Of the blocks, whose self-attention is causal.
  TORCH_ARG(EncoderOptions, stack);
  /// Positions added to the tokens' embeddings; none unless given, as with a rotary embedding.
  TORCH_ARG(std::optional<PositionEmbeddingOptions>, positions) = std::nullopt;
  /// Whether the scores' weights are the embeddings'. Press and Wolf 2017 (arXiv:1608.05859).
  TORCH_ARG(bool, tied_head) = true;
  /// Probability in [0, 1) of dropping an element of an embedding, in training mode.
  TORCH_ARG(double, dropout) = 0.0;
};

/// A language model: tokens to scores of the next token. With cross-attention in its blocks, the
/// second half of an encoder-decoder model.
///
/// Modules: token_embedding, an Embedding(V, E); position_embedding by option; stack, an Encoder
/// whose attention is causal; head, a Linear(E, V) without bias unless tied.
class HEED_API DecoderImpl : public torch::nn::Cloneable<DecoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit DecoderImpl(const DecoderOptions& options);

  /// Registers the modules: for the constructor and `clone`, once a module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// As Encoder's, embeddings too.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// tokens [B, L], int64 in [0, V); a mask, or all inputs; returns scores [B, L, V].
  /// Throws c10::ValueError when a shape, dtype, device or token is wrong, or a memory is needed.
  at::Tensor forward(const at::Tensor& tokens, const TransformerInputs& inputs = {});

  /// The same with caches of `make_caches`, to which the tokens are appended; see
  /// GroupQueryAttention. A mask or a bias is refused. Throws also when the caches or the counts do
  /// not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& tokens, std::vector<KVCache>& caches,
                            at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;

  /// Returns {scores [B, L, V], weights of each block}. Throws as `forward` does.
  std::tuple<at::Tensor, std::vector<AttentionWeights>> forward_with_weights(
      const at::Tensor& tokens, const TransformerInputs& inputs = {}) const;

  /// An empty cache for each layer; see GroupQueryAttention.
  std::vector<KVCache> make_caches(int64_t batch, int64_t capacity) const;

  /// A memory [B, S, E] for TransformerInputs::projected_memory; see TransformerBlock.
  std::vector<ProjectedMemory> project_memory(const at::Tensor& memory) const;

  /// As given at construction.
  DecoderOptions options;
  torch::nn::Embedding token_embedding{nullptr};  ///< [V, E]
  PositionEmbedding position_embedding{nullptr};  ///< empty unless options.positions()
  Encoder stack{nullptr};                         ///< causal
  torch::nn::Linear head{nullptr};                ///< empty where tied

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(TransformerInputs())})

 private:
  HEED_LOCAL at::Tensor embed(const at::Tensor& tokens,
                              const std::optional<at::Tensor>& positions) const;
  HEED_LOCAL at::Tensor scores(const at::Tensor& x) const;
};
TORCH_MODULE(Decoder);

}  // namespace heed
