// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend.h>
#include <heed/module.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace heed {

/// Options of `ScaledDotProductAttention`.
struct HEED_API ScaledDotProductAttentionOptions {
  /// Required options.
  /* implicit */ ScaledDotProductAttentionOptions(double temperature) : temperature_(temperature) {}
  HEED_NO_BOOL(ScaledDotProductAttentionOptions);
  /// The number by which scores are divided, usually sqrt(D); must not be 0.
  HEED_NUMBER_ARG(double, temperature);
  /// Probability in [0, 1) of dropping an attention weight, in training mode; 0.1 as in the
  /// documents that heed mirrors.
  HEED_NUMBER_ARG(double, dropout) = 0.1;
};

/// softmax(QK^T / temperature) V as a module without parameters. It also returns the weights;
/// `attend` is faster if they are not needed.
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1.
///
/// @code
/// heed::ScaledDotProductAttention attention(/*temperature=*/8.0);  // sqrt(D)
/// auto [output, weights] = attention->forward(query, key, value);  // query [B, H, L, D]
/// @endcode
class HEED_API ScaledDotProductAttentionImpl : public Cloneable<ScaledDotProductAttentionImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit ScaledDotProductAttentionImpl(const ScaledDotProductAttentionOptions& options);
  /// Sets these options and leaves the others at their defaults.
  explicit ScaledDotProductAttentionImpl(double temperature, double dropout = 0.1);
  HEED_NO_BOOL(ScaledDotProductAttentionImpl);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// query [B, H, L, D], key [B, G, S, D], value [B, G, S, Dv]; mask as in AttendOptions.
  /// Returns {output [B, H, L, Dv], weights [B, H, L, S]}; the weights are those applied to value.
  /// Throws c10::ValueError when a shape, dtype or device is invalid.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value,
                                             const std::optional<at::Tensor>& mask = {});

  /// The options given at construction.
  ScaledDotProductAttentionOptions options;

 protected:
  HEED_DEFAULT_ARGS(3, std::optional<at::Tensor>);
};
TORCH_MODULE(ScaledDotProductAttention);

}  // namespace heed
