// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <heed/module.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string_view>
#include <utility>

namespace heed {

/// How a norm scales its elements.
enum class NormKind {
  layer_norm,  ///< to mean 0 and variance 1. Ba et al. 2016 (arXiv:1607.06450)
  rms_norm,    ///< to a mean square of 1. Zhang and Sennrich 2019 (arXiv:1910.07467)
};

/// Returns the kind's name, "layer_norm" or "rms_norm".
HEED_API std::string_view to_string(NormKind kind);

/// Options of `Norm`.
struct HEED_API NormOptions {
  /// Required options.
  /* implicit */ NormOptions(int64_t dim) : dim_(dim) {}
  HEED_NO_BOOL(NormOptions);
  /// The size of the last dimension, which is normalized.
  HEED_NUMBER_ARG(int64_t, dim);
  /// LayerNorm or RMSNorm.
  TORCH_ARG(NormKind, kind) = NormKind::layer_norm;
  /// Added to the variance or the mean square. The default is that of torch.nn.LayerNorm, also for
  /// `rms_norm`; that of the class RMSNorm below is 1e-6.
  HEED_NUMBER_ARG(double, eps) = 1e-5;
  /// Whether `layer_norm` adds a bias; `rms_norm` never does.
  TORCH_ARG(bool, bias) = true;
  /// Whether `rms_norm` multiplies by 1 + weight, as Gemma does, so that weight decay pulls the
  /// factor to 1 and not to 0.
  TORCH_ARG(bool, unit_offset) = false;
};

/// LayerNorm or RMSNorm, chosen by an option: normalizes the last dimension, then multiplies it by
/// a weight.
///
/// @code
/// heed::Norm norm(heed::NormOptions(/*dim=*/64).kind(heed::NormKind::rms_norm));
/// auto y = norm->forward(torch::randn({2, 10, 64}));
/// @endcode
///
/// Parameters: weight [dim], initially 1, or 0 with unit_offset; for layer_norm also bias [dim],
/// initially 0.
///
/// A subclass may override `forward`, and stand in the place of another module's norm.
class HEED_API NormImpl : public Cloneable<NormImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit NormImpl(const NormOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., dim]; returns the same shape and dtype. Computed in float32, or in float64 for
  /// float64; parameters in float32 take x in bfloat16 and float16 too.
  /// Throws c10::ValueError when the last dimension or the dtype is invalid.
  virtual at::Tensor forward(const at::Tensor& x);

  /// Returns a copy. Throws c10::ValueError for a subclass, and so does `clone` of a module that
  /// holds one: the copy would be a plain Norm.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const final;

  /// The options given at construction.
  NormOptions options;
  at::Tensor weight;  ///< [dim]
  at::Tensor bias;    ///< [dim]; undefined if there is none

 protected:
  // `forward` with other parameters than the module's.
  at::Tensor normalize(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;
};
TORCH_MODULE(Norm);

/// `Norm` of kind rms_norm, which torch::nn lacks: `heed::RMSNorm norm(64);`. Its default eps is
/// Llama's, 1e-6, where NormOptions and TransformerBlockOptions have 1e-5: compare eps when you
/// port a model.
class HEED_API RMSNorm : public Norm {
 public:
  // Not the inherited constructors: RMSNorm(8) would make a layer_norm.
  /// An empty holder.
  /* implicit */ RMSNorm(std::nullptr_t) : Norm(nullptr) {}
  /// Holds an existing module.
  /* implicit */ RMSNorm(std::shared_ptr<NormImpl> module) : Norm(std::move(module)) {}
  /// Makes a new module; options as in NormOptions, but eps is 1e-6 by default.
  explicit RMSNorm(int64_t dim, double eps = 1e-6)
      : Norm(NormOptions(dim).kind(NormKind::rms_norm).eps(eps)) {}
  HEED_NO_BOOL(RMSNorm);
};

}  // namespace heed
