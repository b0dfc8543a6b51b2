#pragma once

#include <heed/feed_forward.h>
#include <heed/group_query_attention.h>
#include <heed/norm.h>
#include <torch/nn/modules/container/modulelist.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace heed {

/// Where a block's norms stand.
enum class NormPlacement {
  pre,   ///< x + layer(norm(x)). Xiong et al. 2020 (arXiv:2002.04745)
  post,  ///< norm(x + layer(x)). Vaswani et al. 2017 (arXiv:1706.03762)
};

/// Options of `TransformerBlock`.
struct HEED_API TransformerBlockOptions {
  /// Required options.
  /* implicit */ TransformerBlockOptions(const GroupQueryAttentionOptions& attention)
      : attention_(attention), feed_forward_(attention.emb_dim()) {}
  /// Of the self-attention; its emb_dim is the block's E.
  TORCH_ARG(GroupQueryAttentionOptions, attention);
  /// Of the feed-forward layer; its emb_dim must be E.
  TORCH_ARG(FeedForwardOptions, feed_forward);
  /// Whether tokens also attend to a memory, between self-attention and feed-forward layer, with as
  /// many heads as to themselves.
  TORCH_ARG(bool, cross_attention) = false;
  /// Before or after each layer.
  TORCH_ARG(NormPlacement, norm_placement) = NormPlacement::pre;
  /// Of every norm.
  TORCH_ARG(NormKind, norm) = NormKind::layer_norm;
  /// Added to the variance or the mean square in every norm.
  TORCH_ARG(double, norm_eps) = 1e-5;
  /// Whether every layer_norm adds a bias.
  TORCH_ARG(bool, norm_bias) = true;
  /// Probability in [0, 1) of dropping an element of a layer's output, in training mode.
  TORCH_ARG(double, dropout) = 0.0;
};

/// What a block or a stack of them is given besides its tokens.
struct HEED_API TransformerInputs {
  /// Nothing, or a mask alone.
  /// @{
  TransformerInputs() = default;
  /* implicit */ TransformerInputs(std::optional<at::Tensor> mask) : mask_(std::move(mask)) {}
  /* implicit */ TransformerInputs(at::Tensor mask) : mask_(std::move(mask)) {}
  /// @}
  /// Of the self-attention, as in AttendOptions.
  TORCH_ARG(std::optional<at::Tensor>, mask) = std::nullopt;
  /// Of the self-attention, as in AttendOptions: positions relative to each other, of every layer.
  TORCH_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  /// What cross-attention attends to: [B, S, E].
  TORCH_ARG(std::optional<at::Tensor>, memory) = std::nullopt;
  /// In place of the memory what `project_memory` made of it, one a block: for many calls with one
  /// memory, such as the steps of a translation.
  TORCH_ARG(std::vector<ProjectedMemory>, projected_memory) = {};
  /// Of the cross-attention, as in AttendOptions.
  TORCH_ARG(std::optional<at::Tensor>, memory_mask) = std::nullopt;
};

/// The weights that the attentions of a block applied to the values.
struct HEED_API AttentionWeights {
  at::Tensor self;   ///< [B, H, L, L]
  at::Tensor cross;  ///< [B, H, L, S]; undefined where there is no cross-attention
};

/// A transformer's block: self-attention, cross-attention by option, and feed-forward layer, each
/// with a norm and a residual connection.
///
/// Modules: attention and by option cross_attention, a GroupQueryAttention each; feed_forward;
/// attention_norm, cross_attention_norm, feed_forward_norm.
class HEED_API TransformerBlockImpl : public torch::nn::Cloneable<TransformerBlockImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit TransformerBlockImpl(const TransformerBlockOptions& options);

  /// Registers the modules: for the constructor and `clone`, once a module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; a mask, or all inputs; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong, or a memory is needed.
  at::Tensor forward(const at::Tensor& x, const TransformerInputs& inputs = {});

  /// The same with self-attention that goes on from `cache`; see GroupQueryAttention. It must be
  /// causal by its option; a mask or a bias is refused. Throws also when the cache or the counts do
  /// not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;

  /// Returns {output [B, L, E], weights}. Throws as `forward` does.
  std::tuple<at::Tensor, AttentionWeights> forward_with_weights(
      const at::Tensor& x, const TransformerInputs& inputs = {}) const;

  /// An empty cache for the self-attention; see GroupQueryAttention.
  KVCache make_cache(int64_t batch, int64_t capacity) const;

  /// The keys and values that the cross-attention has of a memory [B, S, E], for
  /// TransformerInputs::projected_memory.
  /// Throws c10::ValueError when the shape, dtype or device is wrong, or there is no
  /// cross-attention.
  ProjectedMemory project_memory(const at::Tensor& memory) const;

  /// As given at construction.
  TransformerBlockOptions options;
  /// The modules named above.
  /// @{
  GroupQueryAttention attention{nullptr}, cross_attention{nullptr};
  FeedForward feed_forward{nullptr};
  Norm attention_norm{nullptr}, cross_attention_norm{nullptr}, feed_forward_norm{nullptr};
  /// @}

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(TransformerInputs())})

 private:
  template <typename Layer>
  at::Tensor residual(const at::Tensor& x, const Norm& norm, const Layer& layer) const;
  at::Tensor attend_to_memory(const at::Tensor& x, const TransformerInputs& inputs) const;
  template <typename SelfAttend, typename CrossAttend>
  at::Tensor run(const at::Tensor& x, const TransformerInputs& inputs,
                 const SelfAttend& self_attend, const CrossAttend& cross_attend) const;
};
TORCH_MODULE(TransformerBlock);

/// Options of `Encoder`.
struct HEED_API EncoderOptions {
  /// Required options.
  EncoderOptions(const TransformerBlockOptions& block, int64_t num_layers)
      : block_(block), num_layers_(num_layers) {}
  /// Of every block.
  TORCH_ARG(TransformerBlockOptions, block);
  /// How many blocks.
  TORCH_ARG(int64_t, num_layers);
  /// Whether a norm stands behind the last block; unless given, with pre-norm.
  TORCH_ARG(std::optional<bool>, final_norm) = std::nullopt;
  /// Whether a block's inner tensors are computed again in the backward pass instead of being kept,
  /// in training mode. Chen et al. 2016 (arXiv:1604.06174).
  TORCH_ARG(bool, checkpointing) = false;
};

/// Blocks, and by option, with pre-norm unless told otherwise, a norm at the end.
///
/// Modules: blocks, a ModuleList of TransformerBlock; final_norm, by option.
class HEED_API EncoderImpl : public torch::nn::Cloneable<EncoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit EncoderImpl(const EncoderOptions& options);

  /// Registers the modules: for the constructor and `clone`, once a module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// A copy whose blocks share a rotary embedding where these do.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  /// Weights from a normal distribution of deviation 0.02, those of the layers that end in a
  /// residual connection smaller by sqrt(2 * num_layers), biases 0: as GPT-2. Radford et al. 2019.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E], tokens' embeddings; a mask, or all inputs; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong, or a memory is needed.
  at::Tensor forward(const at::Tensor& x, const TransformerInputs& inputs = {});

  /// The same with self-attention that goes on from a cache for each layer; see
  /// GroupQueryAttention. It must be causal by its option; a mask or a bias is refused. Throws also
  /// when the caches or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, std::vector<KVCache>& caches,
                            at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;

  /// Returns {output [B, L, E], weights of each block}, without checkpointing. Throws as `forward`
  /// does.
  std::tuple<at::Tensor, std::vector<AttentionWeights>> forward_with_weights(
      const at::Tensor& x, const TransformerInputs& inputs = {}) const;

  /// An empty cache for each layer; see GroupQueryAttention.
  std::vector<KVCache> make_caches(int64_t batch, int64_t capacity) const;

  /// A memory [B, S, E] for TransformerInputs::projected_memory; see TransformerBlock.
  std::vector<ProjectedMemory> project_memory(const at::Tensor& memory) const;

  /// As given at construction.
  EncoderOptions options;
  torch::nn::ModuleList blocks{nullptr};  ///< num_layers of TransformerBlock
  Norm final_norm{nullptr};               ///< empty where there is none

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(TransformerInputs())})
};
TORCH_MODULE(Encoder);

}  // namespace heed
