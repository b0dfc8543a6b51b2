// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/feed_forward.h>
#include <heed/group_query_attention.h>
#include <heed/module.h>
#include <heed/norm.h>

#include <optional>
#include <ostream>

namespace heed {

/// Options of `AttentionPooling`.
struct HEED_API AttentionPoolingOptions {
  /// Required options.
  /* implicit */ AttentionPoolingOptions(const GroupQueryAttentionOptions& attention)
      : attention_(attention), feed_forward_(attention.emb_dim()) {}
  /// Options of the attention, whose emb_dim is E.
  TORCH_ARG(GroupQueryAttentionOptions, attention);
  /// Options of the feed-forward layer; its emb_dim must be E.
  TORCH_ARG(FeedForwardOptions, feed_forward);
  /// Added to the variance in the layer_norm.
  HEED_NUMBER_ARG(double, norm_eps) = 1e-5;
};

/// Makes one vector of many: a learned query, the probe, attends to all of them, and a feed-forward
/// layer follows: y = attention(probe, x, x); y + feed_forward(norm(y)). Lee et al. 2018
/// (arXiv:1810.00825), Zhai et al. 2021 (arXiv:2106.04560).
///
/// @code
/// heed::GroupQueryAttentionOptions heads(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
/// heed::AttentionPooling pooling{heed::AttentionPoolingOptions(heads)};
/// auto vectors = pooling->forward(torch::randn({2, 10, 64}));  // [B, E]
/// @endcode
///
/// Modules: attention, a GroupQueryAttention; norm, a layer_norm; feed_forward, a FeedForward.
/// Parameter: probe [1, 1, E].
class HEED_API AttentionPoolingImpl : public Cloneable<AttentionPoolingImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit AttentionPoolingImpl(const AttentionPoolingOptions& options);

  /// Registers the modules. The constructor and `clone` call it, once for each module.
  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters as Encoder does.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [B, L, E]; mask of the attention from the probe to x, [B, 1, 1, L], as in AttendOptions;
  /// returns [B, E].
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  /// The options given at construction.
  AttentionPoolingOptions options;
  at::Tensor probe;                        ///< [1, 1, E]
  GroupQueryAttention attention{nullptr};  ///< from the probe to x
  Norm norm{nullptr};                      ///< before the feed-forward layer
  FeedForward feed_forward{nullptr};       ///< the last layer

 protected:
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>);
};
TORCH_MODULE(AttentionPooling);

}  // namespace heed
