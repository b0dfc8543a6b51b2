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

/// Options of `GroupQueryAttention`.
struct HEED_API GroupQueryAttentionOptions {
  /// The options without a default.
  GroupQueryAttentionOptions(int64_t emb_dim, int64_t head_num, int64_t group_num)
      : emb_dim_(emb_dim), head_num_(head_num), group_num_(group_num) {}
  /// E, the size of the inputs' and the output's last dimension.
  TORCH_ARG(int64_t, emb_dim);
  /// H, the number of query heads; divisible by group_num.
  TORCH_ARG(int64_t, head_num);
  /// G, the number of key/value heads; 1 is multi-query attention, H multi-head attention.
  TORCH_ARG(int64_t, group_num);
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  TORCH_ARG(double, dropout) = 0.0;
  /// D; E / H unless given, and then E must be a multiple of H.
  TORCH_ARG(std::optional<int64_t>, head_dim) = std::nullopt;
  /// Whether fc_q, fc_k and fc_v add a bias.
  TORCH_ARG(bool, input_bias) = true;
  /// Whether fc_o adds a bias.
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

/// Multi-head attention whose query heads share key/value heads in groups of H / G.
/// Ainslie et al. 2023 (arXiv:2305.13245).
///
/// Parameters: fc_q, a Linear(E, H * D); fc_k and fc_v, each a Linear(E, G * D); fc_o, a
/// Linear(H * D, E).
class HEED_API GroupQueryAttentionImpl : public torch::nn::Cloneable<GroupQueryAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit GroupQueryAttentionImpl(const GroupQueryAttentionOptions& options);
  /// With these options, and the others at their defaults.
  GroupQueryAttentionImpl(int64_t emb_dim, int64_t head_num, int64_t group_num);

  /// Builds the projections anew. Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Draws the parameters anew.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// Self-attention: x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Attention between sources: query [B, L, E], key and value [B, S, E]; returns [B, L, E].
  /// Throws as for self-attention.
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
  GroupQueryAttentionOptions options;
  /// The layers named above.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_k{nullptr}, fc_v{nullptr}, fc_o{nullptr};
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
struct torch::detail::has_forward<heed::GroupQueryAttentionImpl> : std::true_type {};

namespace heed {
TORCH_MODULE(GroupQueryAttention);
}  // namespace heed
