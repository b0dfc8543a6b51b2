#pragma once

#include <heed/arg.h>
#include <heed/attend_options.h>
#include <heed/kv_cache.h>
#include <heed/module.h>
#include <heed/projected_memory.h>
#include <heed/qk_norm.h>
#include <heed/rotary_embedding.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <ostream>
#include <tuple>

namespace heed {

namespace detail {
struct HeadProjections;
}

/// What the options of `MultiHeadAttention` and `GroupQueryAttention` have in common.
template <typename Derived>
struct MultiHeadAttentionOptionsBase {
 private:
  friend Derived;
  MultiHeadAttentionOptionsBase(int64_t emb_dim, double dropout)
      : emb_dim_(emb_dim), dropout_(dropout) {}

 public:
  /// E, the size of query's and the output's last dimension.
  HEED_ARG(int64_t, emb_dim);
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  HEED_ARG(double, dropout);
  /// Size of key's last dimension; E unless given.
  HEED_ARG(std::optional<int64_t>, key_emb_dim) = std::nullopt;
  /// Size of value's last dimension; E unless given.
  HEED_ARG(std::optional<int64_t>, value_emb_dim) = std::nullopt;
  /// D; E / H unless given, and then E must be a multiple of H.
  HEED_ARG(std::optional<int64_t>, head_dim) = std::nullopt;
  /// Dv; D unless given.
  HEED_ARG(std::optional<int64_t>, value_head_dim) = std::nullopt;
  /// Whether fc_q, fc_k and fc_v add a bias.
  HEED_ARG(bool, input_bias) = true;
  /// Whether the output projection adds a bias.
  HEED_ARG(bool, output_bias) = true;
  /// Factor on the scores; 1 / sqrt(D) unless given.
  HEED_ARG(std::optional<double>, scale) = std::nullopt;
  /// As in AttendOptions, for every call.
  HEED_ARG(bool, causal) = false;
  /// As in AttendOptions, for every call.
  HEED_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Rotates queries and keys by their positions; its head_dim must be D. None unless given.
  HEED_ARG(std::optional<RotaryEmbeddingOptions>, rotary) = std::nullopt;
  /// Normalizes every head of query and key. None unless given.
  HEED_ARG(std::optional<QkNormOptions>, qk_norm) = std::nullopt;
  /// As in AttendOptions, for every call.
  HEED_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Whether scores fall with the distance, by `alibi_slopes(H)`.
  HEED_ARG(bool, alibi) = false;
  /// Whether each head learns a sink, as in AttendOptions.
  HEED_ARG(bool, sinks) = false;
};

/// What `MultiHeadAttention` and `GroupQueryAttention` have in common: all but the names that the
/// documents give to their options and output projections.
template <typename Derived, typename Options>
class HEED_API MultiHeadAttentionImplBase : public torch::nn::Cloneable<Derived> {
 public:
  /// Registers the projections: for the constructor and `clone`, once a module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name, the required options and those that are not at their defaults.
  void pretty_print(std::ostream& stream) const override;

  /// Self-attention: x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Attention between sources: query [B, L, E], key [B, S, key_emb_dim],
  /// value [B, S, value_emb_dim]; mask and bias as in AttendOptions; returns [B, L, E].
  /// Self-attention with a bias, such as T5's and Swin's, is forward(x, x, x, mask, bias).
  /// Throws as for self-attention.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask = {},
                     const std::optional<at::Tensor>& bias = {});

  /// The keys and values of key [B, S, key_emb_dim] and value [B, S, value_emb_dim], for many
  /// queries over one memory: `forward(query, project_memory(key, value))` is
  /// `forward(query, key, value)`, and projects the query alone. Gradients pass through.
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  ProjectedMemory project_memory(const at::Tensor& key, const at::Tensor& value) const;

  /// Attention of query [B, L, E] to a memory that `project_memory` projected; mask and bias as in
  /// AttendOptions; returns [B, L, E]. Throws as for self-attention.
  at::Tensor forward(const at::Tensor& query, const ProjectedMemory& memory,
                     const std::optional<at::Tensor>& mask = {},
                     const std::optional<at::Tensor>& bias = {});

  /// Causal self-attention that goes on from the tokens in `cache`, to which those of x [B, L, E]
  /// are appended; returns [B, L, E]. The whole prompt at once, chunks of it or single tokens give
  /// the same numbers. With counts [B], sequence b has only the first counts[b] tokens of x; what
  /// is returned for the others means nothing.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {}) const;

  /// An empty cache for `batch` sequences of up to `capacity` tokens, in the dtype that keys have:
  /// the parameters', or under autocast autocast's. With a window of at most `capacity` keys, those
  /// that no later query sees are evicted, and sequences have no end.
  /// Throws c10::ValueError when a size is below 1.
  KVCache make_cache(int64_t batch, int64_t capacity) const;

  /// Returns {output [B, L, E], weights [B, H, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, S]}. Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const std::optional<at::Tensor>& mask = {}, const std::optional<at::Tensor>& bias = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, S]}. Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& query, const ProjectedMemory& memory,
      const std::optional<at::Tensor>& mask = {}, const std::optional<at::Tensor>& bias = {}) const;

  using torch::nn::Module::to;
  /// As in torch::nn::Module; ALiBi's slopes stay float32.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  /// As in torch::nn::Module; ALiBi's slopes stay float32.
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  /// As given at construction.
  Options options;
  torch::nn::Linear fc_q{nullptr};  ///< (E, H * D)
  torch::nn::Linear fc_k{nullptr};  ///< (key_emb_dim, G * D)
  torch::nn::Linear fc_v{nullptr};  ///< (value_emb_dim, G * Dv)
  RotaryEmbedding rotary{nullptr};  ///< empty unless options.rotary()
  Norm q_norm{nullptr};             ///< empty unless options.qk_norm()
  Norm k_norm{nullptr};             ///< empty unless options.qk_norm()
  at::Tensor sinks;                 ///< [H], zeros at first; undefined unless options.sinks()
  /// A buffer [H], float32; undefined unless options.alibi(). Weight files leave it out.
  at::Tensor alibi_slopes;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())})

 private:
  friend Derived;
  /// Leaves the projections to `reset`, which the derived class calls.
  explicit MultiHeadAttentionImplBase(const Options& options) : options(options) {}

  HEED_LOCAL detail::HeadProjections projections() const;
  HEED_LOCAL AttendOptions attend_options(const std::optional<at::Tensor>& mask = {},
                                          const std::optional<at::Tensor>& bias = {}) const;
  HEED_LOCAL void restore_slopes();
};

}  // namespace heed
