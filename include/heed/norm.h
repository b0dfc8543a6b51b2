#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string_view>
#include <utility>

namespace heed {

/// What a norm scales its elements to.
enum class NormKind {
  layer_norm,  ///< to mean 0 and variance 1. Ba et al. 2016 (arXiv:1607.06450)
  rms_norm,    ///< to a mean square of 1. Zhang and Sennrich 2019 (arXiv:1910.07467)
};

/// The kind's name, "layer_norm" or "rms_norm".
HEED_API std::string_view to_string(NormKind kind);

/// Options of `Norm`.
struct HEED_API NormOptions {
  /// Required options.
  /* implicit */ NormOptions(int64_t dim) : dim_(dim) {}
  /// The size of the last dimension, which is normalised.
  TORCH_ARG(int64_t, dim);
  /// What is made of the last dimension.
  TORCH_ARG(NormKind, kind) = NormKind::layer_norm;
  /// Added to the variance or the mean square.
  TORCH_ARG(double, eps) = 1e-5;
  /// Whether `layer_norm` adds a bias; `rms_norm` never does.
  TORCH_ARG(bool, bias) = true;
};

/// Normalises the last dimension, then multiplies by a weight: LayerNorm or RMSNorm by an option.
///
/// Parameters: weight [dim], 1 at first; bias [dim], 0 at first, for layer_norm.
class HEED_API NormImpl : public torch::nn::Cloneable<NormImpl> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit NormImpl(const NormOptions& options);

  /// Throws c10::ValueError when an option is out of range.
  void reset() override;
  /// Re-initializes the parameters.
  void reset_parameters();
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., dim]; returns the same shape and dtype. Computed in float32 at least.
  /// Throws c10::ValueError when the last dimension or the dtype is wrong.
  at::Tensor forward(const at::Tensor& x);

  /// As given at construction.
  NormOptions options;
  at::Tensor weight;  ///< [dim]
  at::Tensor bias;    ///< [dim]; undefined where there is none
};
TORCH_MODULE(Norm);

/// `Norm` of the kind that torch::nn lacks.
class HEED_API RMSNorm : public Norm {
 public:
  // Not the inherited constructors: RMSNorm(8) would make a layer_norm.
  /// Empty.
  /* implicit */ RMSNorm(std::nullptr_t) : Norm(nullptr) {}
  /// Holds a module that there is.
  /* implicit */ RMSNorm(std::shared_ptr<NormImpl> module) : Norm(std::move(module)) {}
  /// A new one; options as in NormOptions.
  explicit RMSNorm(int64_t dim, double eps = 1e-6)
      : Norm(NormOptions(dim).kind(NormKind::rms_norm).eps(eps)) {}
};

}  // namespace heed
