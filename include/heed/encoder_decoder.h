// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/decoder.h>
#include <heed/frame_encoder.h>
#include <heed/module.h>
#include <heed/text_encoder.h>

#include <optional>
#include <ostream>
#include <utility>
#include <variant>
#include <vector>

namespace heed {

/// Options of the encoder of a source: of tokens, or of frames.
using SourceEncoderOptions = std::variant<TextEncoderOptions, FrameEncoderOptions>;

/// Options of `EncoderDecoder`.
struct HEED_API EncoderDecoderOptions {
  /// Required options, with an encoder of tokens. The decoder gets cross-attention.
  EncoderDecoderOptions(const TextEncoderOptions& encoder, const DecoderOptions& decoder)
      : EncoderDecoderOptions(SourceEncoderOptions(encoder), decoder) {}
  /// Required options, with an encoder of frames. The decoder gets cross-attention.
  EncoderDecoderOptions(const FrameEncoderOptions& encoder, const DecoderOptions& decoder)
      : EncoderDecoderOptions(SourceEncoderOptions(encoder), decoder) {}
  /// Options of the encoder. If it is a TextEncoder without a token embedding, the source has the
  /// token embedding of the decoder.
  TORCH_ARG(SourceEncoderOptions, encoder);
  /// Options of the decoder, whose blocks have cross-attention; its E is that of the encoder.
  TORCH_ARG(DecoderOptions, decoder);

 private:
  EncoderDecoderOptions(SourceEncoderOptions encoder, const DecoderOptions& decoder)
      : encoder_(std::move(encoder)), decoder_(decoder) {
    decoder_.stack().block().cross_attention(true);
    for (auto& block : decoder_.stack().blocks()) block.cross_attention(true);
  }
};

/// The inputs of an `EncoderDecoder` besides source and target.
struct HEED_API EncoderDecoderInputs {
  /// No further inputs, or only a mask of the source.
  /// @{
  EncoderDecoderInputs() = default;
  /* implicit */ EncoderDecoderInputs(std::optional<at::Tensor> source_mask)
      : source_mask_(std::move(source_mask)) {}
  /* implicit */ EncoderDecoderInputs(at::Tensor source_mask)
      : source_mask_(std::move(source_mask)) {}
  /// @}
  /// The tokens of the source that are seen, by encoder and decoder: [B or 1, 1, 1, S], as
  /// padding_mask and key_padding_mask return it. All by default; not for frames.
  TORCH_ARG(std::optional<at::Tensor>, source_mask) = std::nullopt;
  /// The inputs of the decoder, without a memory and a memory_mask.
  TORCH_ARG(TransformerInputs, target) = {};
};

/// A model that makes one sequence of another, such as a translation of a text or the text of
/// speech: an encoder, and a decoder that attends to the encoder's output. Vaswani et al. 2017
/// (arXiv:1706.03762), Raffel et al. 2020 (arXiv:1910.10683).
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::EncoderOptions stack(attention, /*num_layers=*/2);
/// heed::PositionEmbeddingOptions positions(64);
/// auto encoder = heed::TextEncoderOptions(/*vocab_size=*/100, stack)
///                    .token_embedding(false)  // that of the decoder
///                    .positions(positions);
/// auto decoder = heed::DecoderOptions(/*vocab_size=*/100, stack).positions(positions);
/// heed::EncoderDecoder model(heed::EncoderDecoderOptions(encoder, decoder));
/// auto source = torch::randint(100, {2, 12});  // [B, S]
/// auto target = torch::randint(100, {2, 10});  // [B, L]
/// auto padding = heed::padding_mask(torch::tensor({12, 7}), 12);
/// auto scores = model->forward(source, target, padding);  // [B, L, V]
/// @endcode
///
/// Token by token, the source is encoded and projected once:
///
/// @code
/// torch::NoGradGuard no_grad;
/// auto inputs = heed::TransformerInputs()
///                   .projected_memory(model->project_memory(model->encode(source, padding)))
///                   .memory_mask(padding);
/// auto caches = model->make_caches(/*batch=*/2, /*capacity=*/20);
/// auto tokens = torch::zeros({2, 1}, torch::kLong);  // the token that every target begins with
/// for (int i = 0; i < 20; ++i) {
///   auto next = model->forward_cached(tokens, caches, {}, inputs);  // [B, 1, V]
///   tokens = next.argmax(2);
/// }
/// @endcode
///
/// Modules: encoder, a TextEncoder, or frame_encoder, a FrameEncoder; decoder, a Decoder with
/// cross-attention.
class HEED_API EncoderDecoderImpl : public Cloneable<EncoderDecoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit EncoderDecoderImpl(const EncoderDecoderOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does, including the embeddings.
  void reset_parameters();
  /// Prints the name.
  void pretty_print(std::ostream& stream) const override;

  /// source: tokens [B, S], int64 in [0, V of the source), or frames [B, mels, T]; target [B, L],
  /// int64 in [0, V]; inputs: a mask of the source, or an EncoderDecoderInputs. Returns scores
  /// [B, L, V] of the token that follows each token of the target; without a head, hidden states
  /// [B, L, E].
  /// Throws c10::ValueError when a shape, dtype, device or token is invalid.
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target,
                     const EncoderDecoderInputs& inputs = {});

  /// The loss of a training step: the cross entropy of `forward`'s scores, which are never held as
  /// a whole. targets [B, L] are shifted: targets[b][i] is the token that follows target[b][i]; see
  /// Decoder::loss. Throws c10::ValueError as `forward` and Decoder::loss do.
  at::Tensor loss(const at::Tensor& source, const at::Tensor& target, const at::Tensor& targets,
                  const EncoderDecoderInputs& inputs = {},
                  const LinearCrossEntropyOptions& loss_options = {});

  /// Returns the memory that the decoder attends to: the encoder's output, [B, S, E]. Throws
  /// c10::ValueError as `forward` does.
  at::Tensor encode(const at::Tensor& source, const std::optional<at::Tensor>& source_mask = {});

  /// Returns the projections of memory [B, S, E] in each block of the decoder, for
  /// TransformerInputs::projected_memory; see TransformerBlock.
  std::vector<ProjectedMemory> project_memory(const at::Tensor& memory) const;

  /// Decodes token by token, as Decoder does: the inputs have the memory or the projected memory
  /// and, if the source is padded, its mask as memory_mask. Throws c10::ValueError as Decoder does.
  /// @{
  at::Tensor forward_cached(const at::Tensor& target, std::vector<KVCache>& caches,
                            at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;
  at::Tensor forward_cached(const at::Tensor& target, std::vector<KVCache>& caches,
                            at::IntArrayRef counts, bool last_only,
                            const TransformerInputs& inputs = {}) const;
  at::Tensor forward_cached(const at::Tensor& target, PagedStep& step, bool last_only = false,
                            const TransformerInputs& inputs = {}) const;
  /// @}

  /// Returns an empty cache for each layer of the decoder; see GroupQueryAttention.
  std::vector<KVCache> make_caches(int64_t batch, int64_t capacity,
                                   const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages for all layers of the decoder, for targets that come
  /// and go; see Decoder.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// Returns the inputs of the decoder for a source: those given, the memory that it attends to,
  /// and the source's mask as memory_mask. Throws c10::ValueError as `forward` does.
  TransformerInputs target_inputs(const at::Tensor& source,
                                  const EncoderDecoderInputs& inputs = {});

  /// The options given at construction.
  EncoderDecoderOptions options;
  TextEncoder encoder{nullptr};         ///< empty if the source has frames
  FrameEncoder frame_encoder{nullptr};  ///< empty if the source has tokens
  Decoder decoder{nullptr};             ///< with cross-attention

 protected:
  HEED_DEFAULT_ARGS(2, EncoderDecoderInputs);

 private:
  HEED_LOCAL void check_options() const;
  HEED_LOCAL void check_source_mask(const at::Tensor& source,
                                    const std::optional<at::Tensor>& source_mask) const;
};
TORCH_MODULE(EncoderDecoder);

}  // namespace heed
