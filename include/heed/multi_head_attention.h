#pragma once

#include <heed/attend.h>
#include <heed/kv_cache.h>
#include <heed/qk_norm.h>
#include <heed/rotary_embedding.h>
#include <torch/detail/static.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <type_traits>

namespace heed {

namespace detail {
struct HeadProjections;
}

/// Attention over heads packed in the last dimension, without projections: splits the heads,
/// calls `attend` and merges them. The number of key/value heads G is key's last dimension over D.
///
/// Shapes (letters as in attend.h):
///   query    [B, L, H * D]
///   key      [B, S, G * D]   same dtype and device as query
///   value    [B, S, G * Dv]  same dtype and device as query
///   returns  [B, L, H * Dv]
/// Throws c10::ValueError when a shape, dtype, device or option is wrong.
HEED_API at::Tensor multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value, int64_t num_heads,
                                         const AttendOptions& options = {});

/// `multi_head_attention`, and the weights: {output [B, L, H * Dv], weights [B, H, L, S]}. Throws
/// likewise.
HEED_API std::tuple<at::Tensor, at::Tensor> multi_head_attention_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t num_heads,
    const AttendOptions& options = {});

/// Options of `MultiHeadAttention`.
struct HEED_API MultiHeadAttentionOptions {
  /// The options without a default.
  MultiHeadAttentionOptions(int64_t emb_dim, int64_t head_nums)
      : emb_dim_(emb_dim), head_nums_(head_nums) {}
  /// E, the size of query's and the output's last dimension.
  TORCH_ARG(int64_t, emb_dim);
  /// H, the number of heads.
  TORCH_ARG(int64_t, head_nums);
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  TORCH_ARG(double, dropout) = 0.1;
  /// Size of key's last dimension; E unless given.
  TORCH_ARG(std::optional<int64_t>, key_emb_dim) = std::nullopt;
  /// Size of value's last dimension; E unless given.
  TORCH_ARG(std::optional<int64_t>, value_emb_dim) = std::nullopt;
  /// D; E / H unless given, and then E must be a multiple of H.
  TORCH_ARG(std::optional<int64_t>, head_dim) = std::nullopt;
  /// Dv; D unless given.
  TORCH_ARG(std::optional<int64_t>, value_head_dim) = std::nullopt;
  /// Whether fc_q, fc_k and fc_v add a bias.
  TORCH_ARG(bool, input_bias) = true;
  /// Whether fc_out adds a bias.
  TORCH_ARG(bool, output_bias) = true;
  /// Factor on the scores; 1 / sqrt(D) unless given.
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  /// As in AttendOptions, for every call.
  TORCH_ARG(bool, causal) = false;
  /// As in AttendOptions, for every call.
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Rotates queries and keys by their positions; its head_dim must be D. None unless given.
  TORCH_ARG(std::optional<RotaryEmbeddingOptions>, rotary) = std::nullopt;
  /// Normalises every head of query and key. None unless given.
  TORCH_ARG(std::optional<QkNormOptions>, qk_norm) = std::nullopt;
  /// As in AttendOptions, for every call.
  TORCH_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Whether scores fall with the distance, by `alibi_slopes(H)`.
  TORCH_ARG(bool, alibi) = false;
  /// Whether each head learns a sink, as in AttendOptions.
  TORCH_ARG(bool, sinks) = false;
};

/// Multi-head attention with query, key, value and output projections.
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2.
///
/// Parameters: fc_q, fc_k, fc_v and fc_out, each a Linear(E, E) unless an option says otherwise:
/// fc_q (E, H * D), fc_k (key_emb_dim, H * D), fc_v (value_emb_dim, H * Dv), fc_out (H * Dv, E).
///
/// Query, key and value may be nested tensors (torch::nested) of sequences: each attends to its own
/// keys alone, the output is nested too, and a mask is refused.
class HEED_API MultiHeadAttentionImpl : public torch::nn::Cloneable<MultiHeadAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  /// With these options, and the others at their defaults.
  MultiHeadAttentionImpl(int64_t emb_dim, int64_t head_nums, double dropout = 0.1);

  /// Builds the projections anew. Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Draws the parameters anew.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Self-attention: x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Attention between sources: query [B, L, E], key [B, S, key_emb_dim],
  /// value [B, S, value_emb_dim]; returns [B, L, E]. Throws as for self-attention.
  // const: torch::nn::AnyModule (and so Sequential) takes the one overload that is not.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask = {}) const;

  /// Causal self-attention that goes on from the tokens in `cache`, to which those of x [B, L, E]
  /// are appended; returns [B, L, E]. The whole prompt at once, chunks of it or single tokens give
  /// the same numbers. With counts [B], sequence b has only the first counts[b] tokens of x; what
  /// is returned for the others means nothing.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, L]}; the weights are those applied to the values.
  /// Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& x, const std::optional<at::Tensor>& mask = {}) const;

  /// Returns {output [B, L, E], weights [B, H, L, S]}. Throws as `forward` does.
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
      const std::optional<at::Tensor>& mask = {}) const;

  /// As given at construction.
  MultiHeadAttentionOptions options;
  /// The layers named above.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_k{nullptr}, fc_v{nullptr}, fc_out{nullptr};
  /// @}
  RotaryEmbedding rotary{nullptr};  ///< empty unless options.rotary()
  Norm q_norm{nullptr};             ///< empty unless options.qk_norm()
  Norm k_norm{nullptr};             ///< empty unless options.qk_norm()
  at::Tensor sinks;                 ///< parameter [H], 0 at first; undefined unless options.sinks()

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())})

 private:
  detail::HeadProjections projections() const;
  AttendOptions attend_options(const std::optional<at::Tensor>& mask) const;
};

}  // namespace heed

// LibTorch finds forward by &Impl::forward, which an overloaded forward does not have.
template <>
struct torch::detail::has_forward<heed::MultiHeadAttentionImpl> : std::true_type {};

namespace heed {
TORCH_MODULE(MultiHeadAttention);
}  // namespace heed
