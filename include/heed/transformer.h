// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attention_inputs.h>
#include <heed/feed_forward.h>
#include <heed/group_query_attention.h>
#include <heed/latent_attention.h>
#include <heed/mixture_of_experts.h>
#include <heed/module.h>
#include <heed/norm.h>
#include <heed/relative_position_bias.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace heed {

/// Where a block has its norms.
enum class NormPlacement {
  pre,       ///< x + layer(norm(x)). Xiong et al. 2020 (arXiv:2002.04745)
  post,      ///< norm(x + layer(x)). Vaswani et al. 2017 (arXiv:1706.03762)
  sandwich,  ///< x + output_norm(layer(norm(x))). Ding et al. 2021 (arXiv:2105.13290), Gemma 2
  output,    ///< x + norm(layer(x)). Liu et al. 2021 (arXiv:2111.09883), OLMo 2
};

/// Returns the placement's name, such as "pre".
HEED_API std::string_view to_string(NormPlacement placement);

/// The kinds of self-attention that a block may have.
using AttentionLayer = std::variant<GroupQueryAttentionOptions, LatentAttentionOptions>;

/// Makes a layer of a class of your own, each time a new one. Its forward takes one tensor, x
/// [B, L, E], and returns that shape.
using LayerFactory = std::function<torch::nn::AnyModule()>;

/// The kinds of feed-forward layer that a block may have.
using FeedForwardLayer = std::variant<FeedForwardOptions, MixtureOfExpertsOptions, LayerFactory>;

/// The kinds of norms that a block may have.
using NormLayer = std::variant<NormKind, LayerFactory>;

/// Options of `TransformerBlock`.
struct HEED_API TransformerBlockOptions {
  /// Required options.
  /// @{
  /* implicit */ TransformerBlockOptions(const GroupQueryAttentionOptions& attention)
      : attention_layer_(attention), feed_forward_layer_(FeedForwardOptions(attention.emb_dim())) {}
  /* implicit */ TransformerBlockOptions(const LatentAttentionOptions& attention)
      : attention_layer_(attention), feed_forward_layer_(FeedForwardOptions(attention.emb_dim())) {}
  /// @}

  /// Sets the self-attention: options of a GroupQueryAttention or of a LatentAttention, whose
  /// emb_dim is the block's E:
  ///
  /// @code
  /// heed::LatentAttentionOptions latent(/*emb_dim=*/64, /*head_num=*/4, /*key_rank=*/16);
  /// block.attention(latent);
  /// @endcode
  TransformerBlockOptions& attention(AttentionLayer layer) {
    attention_layer_ = std::move(layer);
    return *this;
  }
  /// The options of the GroupQueryAttention. Throw c10::ValueError when the attention is of another
  /// kind.
  /// @{
  const GroupQueryAttentionOptions& attention() const;
  GroupQueryAttentionOptions& attention();
  /// @}
  /// The self-attention, of any kind.
  const AttentionLayer& attention_layer() const { return attention_layer_; }
  /// E.
  int64_t emb_dim() const;
  /// Whether the self-attention, of any kind, is causal.
  /// @{
  bool causal() const;
  TransformerBlockOptions& causal(bool causal);
  /// @}

  /// Sets the feed-forward layer: options of a FeedForward or of a MixtureOfExperts, whose emb_dim
  /// must be E, or a function that makes a layer of your own:
  ///
  /// @code
  /// block.feed_forward([] { return torch::nn::AnyModule(MyLayer(64)); });
  /// @endcode
  ///
  /// A clone has a layer that the function makes, with copies of the original's parameters: the
  /// layer must derive from torch::nn::Cloneable for that. pack_weights packs its Linears, which it
  /// should apply by `heed::linear`.
  TransformerBlockOptions& feed_forward(FeedForwardLayer layer) {
    feed_forward_layer_ = std::move(layer);
    return *this;
  }
  /// The options of the FeedForward. Throw c10::ValueError when the layer is of another kind.
  /// @{
  const FeedForwardOptions& feed_forward() const;
  FeedForwardOptions& feed_forward();
  /// @}
  /// The feed-forward layer, of any kind.
  const FeedForwardLayer& feed_forward_layer() const { return feed_forward_layer_; }
  /// Whether the feed-forward layer is a layer of your own.
  bool has_own_feed_forward() const {
    return std::holds_alternative<LayerFactory>(feed_forward_layer_);
  }

  /// Sets the kind of every norm, or a function that makes norms of your own, one for each place:
  ///
  /// @code
  /// block.norm([] { return torch::nn::AnyModule(MyNorm(64)); });
  /// @endcode
  ///
  /// They are cloned and packed as a feed-forward layer of your own is. norm_eps, norm_bias and
  /// norm_unit_offset must not be given with them.
  TransformerBlockOptions& norm(NormLayer norm) {
    norm_layer_ = std::move(norm);
    return *this;
  }
  /// The kind of the norms, layer_norm by default. Throw c10::ValueError when they are your own.
  /// @{
  const NormKind& norm() const;
  NormKind& norm();
  /// @}
  /// The norms, of any kind.
  const NormLayer& norm_layer() const { return norm_layer_; }
  /// Whether the norms are of your own.
  bool has_own_norm() const { return std::holds_alternative<LayerFactory>(norm_layer_); }

  /// Gives the block cross-attention with options of its own: other heads than the self-attention
  /// has, or a memory of another width, which is key_emb_dim and value_emb_dim.
  ///
  /// @code
  /// heed::GroupQueryAttentionOptions cross(/*emb_dim=*/64, /*head_num=*/8, /*group_num=*/8);
  /// block.cross_attention(cross.key_emb_dim(96).value_emb_dim(96));  // memory [B, S, 96]
  /// @endcode
  ///
  /// All of the memory is seen: causal, top_left, windows, rotary and alibi must not be given.
  TransformerBlockOptions& cross_attention(const GroupQueryAttentionOptions& own) {
    cross_attention_ = true;
    cross_attention_layer_ = own;
    return *this;
  }
  /// The cross-attention's own options; empty where it has those of the self-attention.
  const std::optional<GroupQueryAttentionOptions>& cross_attention_layer() const {
    return cross_attention_layer_;
  }

 private:
  AttentionLayer attention_layer_;
  FeedForwardLayer feed_forward_layer_;
  NormLayer norm_layer_ = NormKind::layer_norm;
  std::optional<GroupQueryAttentionOptions> cross_attention_layer_;

  /// Whether the block has cross-attention to a memory, between self-attention and feed-forward
  /// layer. Unless it is given options of its own, it has the heads of the self-attention, which
  /// must be a GroupQueryAttention, and the memory is [B, S, E].
  TORCH_ARG(bool, cross_attention) = false;
  /// Whether the block has self-attention. Without it, there must be cross-attention; the options
  /// of the attention say E, and the heads of a cross-attention that has no options of its own.
  TORCH_ARG(bool, self_attention) = true;
  /// Whether norms are before or after each layer.
  TORCH_ARG(NormPlacement, norm_placement) = NormPlacement::pre;
  /// Whether there is a norm before the attention, with `pre`: a first block whose input is
  /// normalized already needs none.
  TORCH_ARG(bool, attention_norm) = true;
  /// Whether both layers have the block's input: x + attention(norm(x)) + feed_forward(norm(x)),
  /// with `pre` and without cross-attention. Wang and Komatsuzaki 2021 (GPT-J).
  TORCH_ARG(bool, parallel) = false;
  /// Whether attention_norm is the norm of both parallel layers; there is no feed_forward_norm
  /// then.
  TORCH_ARG(bool, shared_norm) = false;
  /// Whether cross_attention_norm normalizes the memory too, with `pre` and `sandwich`. The memory
  /// has the width E then.
  TORCH_ARG(bool, memory_norm) = false;
  /// Added to the variance or the mean square in every norm. The class RMSNorm has 1e-6 by default.
  HEED_NUMBER_ARG(double, norm_eps) = 1e-5;
  /// Whether every layer_norm has a bias.
  TORCH_ARG(bool, norm_bias) = true;
  /// Whether every rms_norm multiplies by 1 + weight; see NormOptions.
  TORCH_ARG(bool, norm_unit_offset) = false;
  /// Factor on the output of each layer before it is added to the layer's input; finite and not 0.
  HEED_NUMBER_ARG(double, residual_scale) = 1.0;
  /// Factor on the input of each layer before the layer's output is added to it, such as DeepNorm's
  /// alpha with `post`: norm(alpha * x + layer(x)); finite and not 0. Wang et al. 2022
  /// (arXiv:2203.00555).
  HEED_NUMBER_ARG(double, skip_scale) = 1.0;
  /// Initial value of a learned factor on each element of a layer's output before it is added to
  /// the layer's input, LayerScale, with any placement of norms; finite. None by default.
  /// Touvron et al. 2021 (arXiv:2103.17239).
  HEED_NUMBER_ARG(std::optional<double>, layer_scale) = std::nullopt;
  /// Probability in [0, 1) of dropping an element of a layer's output, in training mode.
  HEED_NUMBER_ARG(double, dropout) = 0.0;
  /// Probability in [0, 1) of dropping an element of the feed-forward layer's output, in training
  /// mode; `dropout` by default.
  HEED_NUMBER_ARG(std::optional<double>, feed_forward_dropout) = std::nullopt;
};

/// The inputs of a block, or of a stack of blocks, besides its tokens: those of the self-attention,
/// which AttentionInputsBase has, and those of the cross-attention.
///
/// @code
/// auto inputs = heed::TransformerInputs().documents(documents).positions(positions);
/// auto scores = decoder->forward(tokens, inputs);
/// @endcode
struct HEED_API TransformerInputs : AttentionInputsBase<TransformerInputs> {
  /// No further inputs, or only a mask of the self-attention.
  /// @{
  TransformerInputs() = default;
  /* implicit */ TransformerInputs(std::optional<at::Tensor> mask) { this->mask(std::move(mask)); }
  /* implicit */ TransformerInputs(at::Tensor mask) { this->mask(std::move(mask)); }
  /// @}
  /// The sequence that cross-attention attends to: [B, S, E], or [B, S, key_emb_dim] if the
  /// cross-attention has options of its own.
  TORCH_ARG(std::optional<at::Tensor>, memory) = std::nullopt;
  /// Instead of the memory, the result of `project_memory`, one element for each block. For many
  /// calls with one memory, such as the steps of a translation.
  TORCH_ARG(std::vector<ProjectedMemory>, projected_memory) = {};
  /// Mask of the cross-attention, as in AttendOptions.
  TORCH_ARG(std::optional<at::Tensor>, memory_mask) = std::nullopt;
};

/// The weights that the attentions of a block applied to the values.
struct HEED_API AttentionWeights {
  at::Tensor self;   ///< [B, H, L, L]; undefined without self-attention
  at::Tensor cross;  ///< [B, H, L, S]; undefined without cross-attention
};

/// A transformer block: self-attention, cross-attention or both, and a feed-forward layer, each
/// with a norm and a residual connection.
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
/// heed::TransformerBlock block(heed::TransformerBlockOptions(attention).dropout(0.1));
/// auto y = block->forward(torch::randn({2, 10, 64}));  // [B, L, E]
/// @endcode
///
/// Modules: attention, a GroupQueryAttention or a LatentAttention, if options.self_attention();
/// cross_attention, a GroupQueryAttention, if options.cross_attention(); feed_forward, a
/// FeedForward, a MixtureOfExperts or a layer of your own; attention_norm, cross_attention_norm,
/// feed_forward_norm and, with NormPlacement::sandwich, attention_output_norm,
/// cross_attention_output_norm, feed_forward_output_norm, each a Norm or a norm of your own.
/// Parameters, if options.layer_scale(): attention_layer_scale, cross_attention_layer_scale and
/// feed_forward_layer_scale.
///
/// The class is final: heed's modules call it in several ways, and would pass over some of those
/// that a subclass overrides. Hold one in a module of your own instead.
class HEED_API TransformerBlockImpl final : public Cloneable<TransformerBlockImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit TransformerBlockImpl(const TransformerBlockOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Returns a copy. Throws c10::Error when the feed-forward layer or a norm is of a class that
  /// cannot be cloned.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  /// Re-initializes the parameters, except those of a feed-forward layer and norms of your own.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; inputs: a mask, or a TransformerInputs; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid, or when the block has
  /// cross-attention and no memory is given.
  at::Tensor forward(const at::Tensor& x, const TransformerInputs& inputs = {});

  /// Like `forward`, for token-by-token decoding with `cache`; see GroupQueryAttention. The
  /// attention must have the option causal(true). Throws c10::ValueError also when the cache or the
  /// counts do not fit, see KVCache::append, and when the self-attention is given anything but
  /// `rotary_angles` and `relative_bias`.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache. Each
  /// sequence attends to one row of the memory, see PagedStep::memory_rows; the memory_mask is
  /// [1, S], [M or 1, 1, S] or [M or 1, H or 1, 1, S] for M rows. Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer = 0,
                            const TransformerInputs& inputs = {}) const;

  /// Returns {output [B, L, E], weights}. Throws as `forward` does.
  std::tuple<at::Tensor, AttentionWeights> forward_with_weights(
      const at::Tensor& x, const TransformerInputs& inputs = {}) const;

  /// Returns an empty cache for the self-attention; see GroupQueryAttention. Without
  /// self-attention, the cache counts tokens and keeps one number for each.
  KVCache make_cache(int64_t batch, int64_t capacity, const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages, for sequences that come and go. Throws
  /// c10::ValueError also when there is no self-attention.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// Returns the keys and values that the cross-attention projects from a memory, as in
  /// TransformerInputs, for TransformerInputs::projected_memory. It normalizes the memory if
  /// options.memory_norm().
  /// Throws c10::ValueError when the shape, dtype or device is invalid, or when there is no
  /// cross-attention.
  ProjectedMemory project_memory(const at::Tensor& memory) const;

  /// Returns the self-attention, of any kind; null if there is none:
  ///
  /// @code
  /// auto* latent = block->attention_module()->as<heed::LatentAttention>();
  /// @endcode
  std::shared_ptr<torch::nn::Module> attention_module() const;
  /// Returns the feed-forward layer, of any kind:
  ///
  /// @code
  /// auto* mixture = block->feed_forward_module()->as<heed::MixtureOfExperts>();
  /// @endcode
  std::shared_ptr<torch::nn::Module> feed_forward_module() const;
  /// Returns the norm of this name, of any kind; null if the block has none there:
  ///
  /// @code
  /// auto* norm = block->norm_module("attention_norm")->as<MyNorm>();
  /// @endcode
  ///
  /// Throws c10::ValueError when the name is not that of a norm above.
  std::shared_ptr<torch::nn::Module> norm_module(std::string_view name) const;

  /// The options given at construction.
  TransformerBlockOptions options;
  /// The modules named above; attention is empty unless it is a GroupQueryAttention, feed_forward
  /// unless it is a FeedForward, and the norms unless they are of the class Norm.
  /// @{
  GroupQueryAttention attention{nullptr}, cross_attention{nullptr};
  FeedForward feed_forward{nullptr};
  Norm attention_norm{nullptr}, cross_attention_norm{nullptr}, feed_forward_norm{nullptr};
  Norm attention_output_norm{nullptr}, cross_attention_output_norm{nullptr},
      feed_forward_output_norm{nullptr};
  /// @}
  /// [E], the factors of options.layer_scale(); undefined without it.
  /// @{
  at::Tensor attention_layer_scale, cross_attention_layer_scale, feed_forward_layer_scale;
  /// @}

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs);

 private:
  HEED_LOCAL void make_attention();
  HEED_LOCAL void make_norms(size_t place, bool has_norm = true);
  HEED_LOCAL void make_layer_scales();
  HEED_LOCAL void make_feed_forward();
  HEED_LOCAL at::Tensor apply_feed_forward(const at::Tensor& x) const;
  struct Connection;
  struct Stream;
  HEED_LOCAL at::Tensor normalized(size_t place, const at::Tensor& x) const;
  HEED_LOCAL Connection attention_connection() const;
  HEED_LOCAL Connection cross_attention_connection() const;
  HEED_LOCAL Connection feed_forward_connection() const;
  HEED_LOCAL at::Tensor sum(const at::Tensor& x, const at::Tensor& added) const;
  HEED_LOCAL at::Tensor scaled(const at::Tensor& output, const Connection& connection) const;
  HEED_LOCAL Stream sum_for(size_t place, const at::Tensor& x, const at::Tensor& added) const;
  template <typename Layer>
  Stream residual(Stream stream, const Connection& connection, std::optional<size_t> next,
                  const Layer& layer) const;
  template <typename SelfAttend>
  at::Tensor run_parallel(const at::Tensor& x, const SelfAttend& self_attend) const;
  HEED_LOCAL AttentionInputs checked_cached_inputs(const TransformerInputs& inputs) const;
  HEED_LOCAL at::Tensor normalized_memory(const at::Tensor& memory) const;
  template <typename Attend>
  auto with_memory(const TransformerInputs& inputs, const Attend& attend) const;
  HEED_LOCAL at::Tensor attend_to_memory(const at::Tensor& x,
                                         const TransformerInputs& inputs) const;
  template <typename SelfAttend, typename CrossAttend>
  at::Tensor run(const at::Tensor& x, const TransformerInputs& inputs,
                 const SelfAttend& self_attend, const CrossAttend& cross_attend,
                 bool in_step = false) const;

  LatentAttention latent_attention_{nullptr};  // empty if `attention` is not
  torch::nn::AnyModule other_feed_forward_;    // empty if `feed_forward` is not
  // In the order of the members above; empty if these are not.
  std::array<torch::nn::AnyModule, 6> own_norms_;
};
TORCH_MODULE(TransformerBlock);

/// Options of `Encoder`.
struct HEED_API EncoderOptions {
  /// Required options.
  EncoderOptions(const TransformerBlockOptions& block, int64_t num_layers)
      : block_(block), num_layers_(num_layers) {}
  HEED_NO_BOOL(EncoderOptions);
  /// Blocks that differ, at least one; `block` is the first.
  /// Throws c10::ValueError when there is none.
  explicit EncoderOptions(std::vector<TransformerBlockOptions> blocks);
  /// Options of every block, unless `blocks` are given, and of the final norm.
  TORCH_ARG(TransformerBlockOptions, block);
  /// The number of blocks.
  HEED_NUMBER_ARG(int64_t, num_layers);
  /// Options of each block, num_layers of them, if they differ: windows, rotary embeddings or
  /// scales, for example. All have the same emb_dim. Some may have cross-attention and others not;
  /// those alone see the memory.
  TORCH_ARG(std::vector<TransformerBlockOptions>, blocks) = {};
  /// Whether there is a norm after the last block. By default, there is one with pre-norm and none
  /// with post-norm.
  TORCH_ARG(std::optional<bool>, final_norm) = std::nullopt;
  /// A learned bias by distance, which is added to the scores of the self-attention; its head_num
  /// must be that of every block. None by default. Raffel et al. 2020 (arXiv:1910.10683).
  TORCH_ARG(std::optional<RelativePositionBiasOptions>, relative_bias) = std::nullopt;
  /// Whether all blocks have one relative bias. If not, each has its own.
  TORCH_ARG(bool, shared_relative_bias) = true;
  /// Probability in [0, 1) of dropping an element of the stack's output, in training mode.
  HEED_NUMBER_ARG(double, final_dropout) = 0.0;
  /// Whether, in training mode, the backward pass computes a block's intermediate tensors again, so
  /// that they need no memory until then. Chen et al. 2016 (arXiv:1604.06174).
  TORCH_ARG(bool, checkpointing) = false;
};

/// A stack of transformer blocks with an optional norm at the end.
///
/// @code
/// heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
/// heed::Encoder encoder(heed::EncoderOptions(attention, /*num_layers=*/2));
/// auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
/// auto y = encoder->forward(torch::randn({2, 10, 64}), padding);  // [B, L, E]
/// @endcode
///
/// Blocks with equal rotary embeddings share one.
///
/// Modules: blocks, a ModuleList of TransformerBlock; relative_biases, if there are any, a
/// ModuleList of one RelativePositionBias, or of one for each block; final_norm, if there is one, a
/// norm of the first block's kind.
///
/// The class is final: heed's modules call it in several ways, and would pass over some of those
/// that a subclass overrides. Hold one in a module of your own instead.
class HEED_API EncoderImpl final : public Cloneable<EncoderImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit EncoderImpl(const EncoderOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Returns a copy. Its blocks share a rotary embedding if these do.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  /// Re-initializes the parameters as GPT-2 does: weights from a normal distribution with standard
  /// deviation 0.02, or 0.02 / sqrt(2 * num_layers) in layers that end in a residual connection;
  /// biases 0. Radford et al. 2019.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E], embeddings of the tokens; inputs: a mask, or a TransformerInputs.
  /// Returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid, or when the blocks have
  /// cross-attention and no memory is given.
  at::Tensor forward(const at::Tensor& x, const TransformerInputs& inputs = {});

  /// Like `forward`, for token-by-token decoding with one cache for each layer; see
  /// GroupQueryAttention. The attention must have the option causal(true). Throws c10::ValueError
  /// also when the caches or the counts do not fit, see KVCache::append, and when the
  /// self-attention is given anything but `rotary_angles` and `relative_bias`.
  at::Tensor forward_cached(const at::Tensor& x, std::vector<KVCache>& caches,
                            at::IntArrayRef counts = {},
                            const TransformerInputs& inputs = {}) const;

  /// Like the overload above, for the tokens of a step, x [1, T, E]: see PagedKVCache. The blocks
  /// with self-attention are layers first_layer, first_layer + 1, ... of the cache. Memory as in
  /// TransformerBlock.
  /// Returns [1, T, E].
  at::Tensor forward_cached(const at::Tensor& x, PagedStep& step, int64_t first_layer = 0,
                            const TransformerInputs& inputs = {}) const;

  /// Returns {output [B, L, E], weights of each block}, without checkpointing. Throws as `forward`
  /// does.
  std::tuple<at::Tensor, std::vector<AttentionWeights>> forward_with_weights(
      const at::Tensor& x, const TransformerInputs& inputs = {}) const;

  /// Returns an empty cache for each layer; see GroupQueryAttention.
  std::vector<KVCache> make_caches(int64_t batch, int64_t capacity,
                                   const CacheOptions& cache_options = {}) const;

  /// Returns an empty cache of so many pages for all layers, for sequences that come and go. It
  /// keeps the keys of the widest window. Throws c10::ValueError also when the layers' key/value
  /// heads differ in number or size.
  PagedKVCache make_paged_cache(int64_t pages, const PagedCacheOptions& cache_options = {}) const;

  /// Returns the projections of a memory in each block, for TransformerInputs::projected_memory;
  /// see TransformerBlock. Those of blocks without cross-attention hold undefined tensors.
  std::vector<ProjectedMemory> project_memory(const at::Tensor& memory) const;

  /// The options given at construction.
  EncoderOptions options;
  torch::nn::ModuleList blocks{nullptr};           ///< num_layers of TransformerBlock
  torch::nn::ModuleList relative_biases{nullptr};  ///< empty unless options.relative_bias()
  Norm final_norm{nullptr};                        ///< empty if there is none of the class Norm

  /// Returns the norm after the last block, of any kind; null if there is none.
  std::shared_ptr<torch::nn::Module> final_norm_module() const;

 protected:
  HEED_DEFAULT_ARGS(1, TransformerInputs);

 private:
  HEED_LOCAL at::Tensor finished(const at::Tensor& x) const;

  torch::nn::AnyModule own_final_norm_;  // empty if `final_norm` is not
};
TORCH_MODULE(Encoder);

}  // namespace heed
