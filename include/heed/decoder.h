// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/linear_cross_entropy.h>
#include <heed/module.h>
#include <heed/position_embedding.h>
#include <heed/transformer.h>
#include <torch/nn/modules/embedding.h>

#include <optional>
#include <tuple>
#include <vector>

namespace heed {

namespace detail {
class TiedWeight;
}  // namespace detail

/// Options of `Decoder`.
struct HEED_API DecoderOptions {
  /// Required options.
  DecoderOptions(int64_t vocab_size, const TransformerBlockOptions& block, int64_t num_layers)
      : DecoderOptions(vocab_size, EncoderOptions(block, num_layers)) {}
  /// Required options, with those of a whole stack, which becomes causal.
  DecoderOptions(int64_t vocab_size, const EncoderOptions& stack)
      : vocab_size_(vocab_size), stack_(stack) {
    stack_.block().causal(true);
    for (auto& block : stack_.blocks()) block.causal(true);
  }
  HEED_NO_BOOL(DecoderOptions);
  /// V, the number of different tokens.
  HEED_NUMBER_ARG(int64_t, vocab_size);
  /// Options of the stack of blocks; its self-attention is causal.
  TORCH_ARG(EncoderOptions, stack);
  /// Position embedding that is added to the token embeddings; none by default, as models with a
  /// rotary embedding want it.
  TORCH_ARG(std::optional<PositionEmbeddingOptions>, positions) = std::nullopt;
  /// Whether there is a norm after the sum of the embeddings, of the kind of the blocks' norms.
  TORCH_ARG(bool, embedding_norm) = false;
  /// Factor on the token embeddings, finite and not 0, rounded to their dtype; Gemma's is sqrt(E).
  HEED_NUMBER_ARG(double, embedding_scale) = 1.0;
  /// Factor on the next token's scores, before the softcap; finite and not 0, and 1 without a head.
  HEED_NUMBER_ARG(double, scores_scale) = 1.0;
  /// Limits the next token's scores: softcap * tanh(score / softcap). None by default, and without
  /// a head.
  HEED_NUMBER_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Whether there is a head, which computes the scores. Without one, the decoder returns hidden
  /// states, [.., E] wherever it would return scores [.., V], and has no `loss`. Embeddings of
  /// texts and classifiers are made of them; see pool_tokens and SequenceClassifier.
  TORCH_ARG(bool, head) = true;
  /// Whether the head that computes the scores shares its weights with the token embedding. Press
  /// and Wolf 2017 (arXiv:1608.05859).
  TORCH_ARG(bool, tied_head) = true;
  /// Whether each token has a bias that is added to its scores. It is a buffer, which is 0 at first
  /// and which training does not change. False without a head.
  TORCH_ARG(bool, score_bias) = false;
  /// Probability in [0, 1) of dropping an element of an embedding, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
};

/// A language model: takes tokens and returns scores of each next token, or, without a head, a
/// hidden state of each token. With cross-attention in its blocks, it is the decoder of an
/// encoder-decoder model.
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
/// attention.rotary(heed::RotaryEmbeddingOptions(/*head_dim=*/16));
/// heed::Decoder model(heed::DecoderOptions(/*vocab_size=*/100, attention, /*num_layers=*/2));
/// auto tokens = torch::randint(100, {2, 10});  // [B, L]
/// auto scores = model->forward(tokens);        // [B, L, V]
/// @endcode
///
/// Modules: token_embedding, an Embedding(V, E); position_embedding, if options.positions() is set;
/// embedding_norm, if there is one; stack, an Encoder with causal attention; head, a Linear(E, V)
/// without bias, unless it is tied or there is none. Buffer: score_bias [1, V], if there is one.
class HEED_API DecoderImpl : public Cloneable<DecoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit DecoderImpl(const DecoderOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does, including the embeddings.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// tokens [B, L], int64 in [0, V); inputs: a mask, or a TransformerInputs.
  /// Returns scores [B, L, V]; without a head, hidden states [B, L, E], those after the final norm.
  /// Throws c10::ValueError when a shape, dtype, device or token is invalid, or when the blocks
  /// have cross-attention and no memory is given.
  at::Tensor forward(const at::Tensor& tokens, const TransformerInputs& inputs = {});

  /// The loss of a training step, or of perplexity: the cross entropy of `forward`'s scores, which
  /// are never held as a whole; see linear_cross_entropy.
  ///
  /// @code
  /// auto text = torch::randint(100, {2, 11});
  /// auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1));
  /// loss.backward();
  /// @endcode
  ///
  /// targets [B, L], int64, are shifted already: targets[b][i] is the token that follows
  /// tokens[b][i], or loss_options.ignore_index(). The labels of transformers are not shifted.
  /// The scores_scale and the softcap are the decoder's. Returns [], or [B, L] without reduction.
  /// With a parallelized decoder, every process calls it with the same tokens and targets.
  /// Throws c10::ValueError as `forward` and `linear_cross_entropy` do, when there is no head, when
  /// loss_options have a bias or a softcap, and, on the CPU, when the targets are the tokens
  /// themselves.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  const TransformerInputs& inputs = {},
                  const LinearCrossEntropyOptions& loss_options = {}) const;

  /// Like `forward`, for token-by-token decoding: appends the tokens to `caches`, which
  /// `make_caches` returned; see GroupQueryAttention. Throws c10::ValueError also when the caches
  /// or the counts do not fit, see KVCache::append, and when the self-attention is given anything
  /// but `rotary_angles` and `relative_bias`.
  at::Tensor forward_cached(const at::Tensor& tokens, std::vector<KVCache>& caches,
                            at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;

  /// Like the overload above. With last_only, computes the scores of each sequence's last counted
  /// token alone, [B, 1, V]: the others' cost most of the time of a prompt in a small model. A
  /// sequence of which no token counts gets scores of 0.
  at::Tensor forward_cached(const at::Tensor& tokens, std::vector<KVCache>& caches,
                            at::IntArrayRef counts, bool last_only,
                            const TransformerInputs& inputs = {}) const;

  /// Like the first overload, for the tokens [1, T] of a step: see PagedKVCache. Returns the
  /// scores [1, T, V] of all tokens or, with last_only, those [1, N, V] of each sequence's last
  /// one. Memory as in TransformerBlock.
  at::Tensor forward_cached(const at::Tensor& tokens, PagedStep& step, bool last_only = false,
                            const TransformerInputs& inputs = {}) const;

  /// Returns {scores [B, L, V], weights of each block}. Throws as `forward` does.
  std::tuple<at::Tensor, std::vector<AttentionWeights>> forward_with_weights(
      const at::Tensor& tokens, const TransformerInputs& inputs = {}) const;

  /// Returns an empty cache for each layer; see GroupQueryAttention.
  std::vector<KVCache> make_caches(int64_t batch, int64_t capacity,
                                   const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages for all layers, for sequences that come and go.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// Returns the projections of memory [B, S, E] in each block, for
  /// TransformerInputs::projected_memory; see TransformerBlock.
  std::vector<ProjectedMemory> project_memory(const at::Tensor& memory) const;

  /// The options given at construction.
  DecoderOptions options;
  torch::nn::Embedding token_embedding{nullptr};  ///< [V, E]
  PositionEmbedding position_embedding{nullptr};  ///< empty unless options.positions()
  Norm embedding_norm{nullptr};                   ///< empty unless options.embedding_norm()
  Encoder stack{nullptr};                         ///< causal
  torch::nn::Linear head{nullptr};  ///< empty if options.tied_head() or without a head
  at::Tensor score_bias;            ///< [1, V]; undefined unless options.score_bias()

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs);

 private:
  HEED_LOCAL at::Tensor embed(const at::Tensor& tokens, const std::optional<at::Tensor>& positions,
                              const detail::TiedWeight& weight) const;
  HEED_LOCAL detail::TiedWeight tied_weight() const;
  HEED_LOCAL void check_whole_vocabulary() const;
  HEED_LOCAL at::Tensor plain_scores(const at::Tensor& x, const detail::TiedWeight& weight) const;
  HEED_LOCAL at::Tensor scores(const at::Tensor& x, const detail::TiedWeight& weight) const;
};
TORCH_MODULE(Decoder);

}  // namespace heed
