#pragma once

#include <heed/attend.h>
#include <heed/kv_cache.h>
#include <heed/norm.h>
#include <heed/rotary_embedding.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>

namespace heed {

/// Options of `LatentAttention`. Of a head's D elements the first `plain_head_dim` know nothing of
/// positions; the last `rotary_head_dim` rotate.
struct HEED_API LatentAttentionOptions {
  /// Required options.
  LatentAttentionOptions(int64_t emb_dim, int64_t head_num, int64_t key_rank)
      : emb_dim_(emb_dim), head_num_(head_num), key_rank_(key_rank) {}
  /// E.
  TORCH_ARG(int64_t, emb_dim);
  /// H.
  TORCH_ARG(int64_t, head_num);
  /// R, the size of the latent vector that a token's keys and values are made from.
  TORCH_ARG(int64_t, key_rank);
  /// The size of the latent vector that queries are made from; none unless given.
  TORCH_ARG(std::optional<int64_t>, query_rank) = std::nullopt;
  /// Elements of a head that do not rotate.
  TORCH_ARG(int64_t, plain_head_dim) = 128;
  /// Elements of a head that rotate; even.
  TORCH_ARG(int64_t, rotary_head_dim) = 64;
  /// Dv.
  TORCH_ARG(int64_t, value_head_dim) = 128;
  /// Of the rotating part; its head_dim must be rotary_head_dim. Interleaved pairs of base 10,000
  /// unless given.
  TORCH_ARG(std::optional<RotaryEmbeddingOptions>, rotary) = std::nullopt;
  /// Factor on the scores; 1 / sqrt(D) unless given.
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  /// Probability in [0, 1) of dropping an attention weight, in training mode.
  TORCH_ARG(double, dropout) = 0.0;
  /// Added to the mean square inside the norms.
  TORCH_ARG(double, norm_eps) = 1e-6;
  /// As in AttendOptions, for every call.
  TORCH_ARG(bool, causal) = true;
};

/// Multi-head latent attention: the keys and values of all heads are made from one small vector a
/// token, and beside it the heads share one key that rotates. DeepSeek-AI 2024 (arXiv:2405.04434).
///
/// A cache holds the vector and the rotated key alone, R + rotary_head_dim numbers a token: from a
/// cache, queries are taken to the latent space instead of keys out of it, which gives the same
/// scores.
///
/// Parameters, D being plain_head_dim + rotary_head_dim: fc_q, a Linear(E, H * D), or with
/// query_rank fc_q_down, q_norm and fc_q_up; fc_kv_down, a Linear(E, R + rotary_head_dim); kv_norm,
/// an RMSNorm(R); fc_kv_up, a Linear(R, H * (plain_head_dim + Dv)); fc_o, a Linear(H * Dv, E).
/// None adds a bias.
class HEED_API LatentAttentionImpl : public torch::nn::Cloneable<LatentAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit LatentAttentionImpl(const LatentAttentionOptions& options);

  /// Registers the modules: for the constructor and `clone`, once a module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; mask as in AttendOptions; returns [B, L, E].
  /// Throws c10::ValueError when a shape, dtype or device is wrong.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// Causal attention that goes on from `cache`, of `make_cache`; see GroupQueryAttention.
  /// Throws c10::ValueError when x, the cache or the counts do not fit; see KVCache::append.
  at::Tensor forward_cached(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts = {}) const;

  /// An empty cache of latent vectors for `batch` sequences of up to `capacity` tokens.
  KVCache make_cache(int64_t batch, int64_t capacity) const;

  /// As given at construction.
  LatentAttentionOptions options;
  /// The layers named above; empty where an option leaves them out.
  /// @{
  torch::nn::Linear fc_q{nullptr}, fc_q_down{nullptr}, fc_q_up{nullptr};
  torch::nn::Linear fc_kv_down{nullptr}, fc_kv_up{nullptr}, fc_o{nullptr};
  RMSNorm q_norm{nullptr}, kv_norm{nullptr};
  /// @}
  RotaryEmbedding rotary{nullptr};  ///< of the rotating part

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())})

 private:
  struct Parts;
  HEED_LOCAL Parts project(const at::Tensor& x, const RotaryAngles& angles) const;
  HEED_LOCAL AttendOptions attend_options(const std::optional<at::Tensor>& mask) const;
  HEED_LOCAL at::Tensor output(const at::Tensor& attended) const;
};
TORCH_MODULE(LatentAttention);

}  // namespace heed
