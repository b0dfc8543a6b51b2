// SPDX-License-Identifier: BSD-3-Clause
#include <heed/norm.h>

#include <torch/nn/init.h>

#include "core/checks.h"
#include "cpu/layers/layer_norm.h"
#include "cpu/layers/rms_norm.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kNorm = "Norm";

}  // namespace

std::string_view to_string(NormKind kind) {
  return kind == NormKind::layer_norm ? "layer_norm" : "rms_norm";
}

NormImpl::NormImpl(const NormOptions& options) : options(options) { reset(); }

void NormImpl::reset() {
  detail::check_positive(kNorm, "dim", options.dim());
  detail::check_eps(kNorm, options.eps());
  HEED_CHECK(!options.unit_offset() || options.kind() == NormKind::rms_norm,
             "{}: unit_offset must be false for {}", kNorm, to_string(options.kind()));
  weight = register_parameter("weight", detail::empty_parameter({options.dim()}));
  if (options.kind() == NormKind::layer_norm && options.bias()) {
    bias = register_parameter("bias", detail::empty_parameter({options.dim()}));
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

void NormImpl::reset_parameters() {
  torch::nn::init::constant_(weight, options.unit_offset() ? 0.0 : 1.0);
  if (bias.defined()) torch::nn::init::zeros_(bias);
}

void NormImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kNorm)
      .show("dim", options.dim())
      .show("kind", to_string(options.kind()))
      .show("eps", options.eps())
      .option("bias", options.bias(), true)
      .option("unit_offset", options.unit_offset(), false);
}

std::shared_ptr<torch::nn::Module> NormImpl::clone(const std::optional<at::Device>& device) const {
  detail::check_no_subclass(kNorm, *this);
  return Cloneable::clone(device);
}

at::Tensor NormImpl::forward(const at::Tensor& x) { return normalize(x, weight, bias); }

at::Tensor NormImpl::normalize(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias) const {
  HEED_CHECK(x.defined() && x.dim() >= 1, "{}: x must be defined and have a last dimension", kNorm);
  HEED_CHECK(x.size(-1) == options.dim(), "{}: x dim {} ({}) must equal dim ({}); x {}", kNorm,
             x.dim() - 1, x.size(-1), options.dim(), detail::shape(x));
  detail::check_same_device(kNorm, "x", x, "weight", weight);
  if (!detail::norm_takes(x.scalar_type(), weight.scalar_type())) {
    detail::check_module_dtype(kNorm, "x", x, weight);
  }
  if (options.kind() == NormKind::rms_norm) {
    return detail::rms_norm(x, weight, options.eps(), options.unit_offset() ? 1.0 : 0.0);
  }
  return detail::layer_norm(x, weight, bias, options.eps());
}

}  // namespace heed
