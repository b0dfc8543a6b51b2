// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/stand_ins.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <optional>

namespace heed::detail {

/// The parameters of an adapter of low rank of a Linear [N, K].
struct LoraParameters {
  at::Tensor a;          // [r, K]
  at::Tensor b;          // [N, r]
  at::Tensor magnitude;  // [N], the lengths of the adapted weight's rows; undefined without DoRA
};

/// The numbers of such an adapter that are not trained.
struct LoraSettings {
  double alpha = 0.0;
  double dropout = 0.0;  // of the adapter's input
  bool rank_stabilized = false;

  /// The factor of B A: alpha / r, or alpha / sqrt(r).
  double scale(int64_t rank) const;
};

/// A Linear with an adapter of low rank beside its weight, which may be packed. Hu et al. 2021
/// (arXiv:2106.09685); with a magnitude Liu et al. 2024 (arXiv:2402.09353).
class LoraLinearImpl final : public torch::nn::LinearImpl, public LinearStandIn {
 public:
  /// The weight and the bias of `base` become this layer's. The parameters fit them.
  LoraLinearImpl(const torch::nn::LinearImpl& base, const LoraParameters& parameters,
                 const LoraSettings& settings);

  at::Tensor forward(const at::Tensor& x) const { return project(x); }
  at::Tensor project(const at::Tensor& x) const override;
  void initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) override;
  void pretty_print(std::ostream& stream) const override;
  /// Throws c10::ValueError: the copy of a module would have a Linear without an adapter.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  /// r; `rank` is that of a process.
  int64_t lora_rank() const { return lora_a.size(0); }
  double scale() const { return settings.scale(lora_rank()); }
  /// The weight that computes the same without an adapter. The layer's is not packed.
  at::Tensor merged_weight() const;

  const LoraSettings settings;
  at::Tensor lora_a, lora_b, lora_magnitude;  // as in LoraParameters

 private:
  at::Tensor adapted_weight() const;
};

/// The lengths of the rows of a weight [N, K], in float32 or wider: [N].
at::Tensor row_lengths(const at::Tensor& weight);

/// The numbers of a weight, in float32 or wider, also of one that is packed.
at::Tensor wide_weight(const at::Tensor& weight);

/// Throws c10::ValueError, which ends in `advice`, if a Linear of the module has an adapter.
void check_no_adapter(const torch::nn::Module& module, const char* advice);

}  // namespace heed::detail
