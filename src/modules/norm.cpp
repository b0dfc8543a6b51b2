#include <heed/norm.h>

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include "core/checks.h"
#include "cpu/layers/rms_norm.h"
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
  weight = register_parameter("weight", at::ones({options.dim()}));
  if (options.kind() == NormKind::layer_norm && options.bias()) {
    bias = register_parameter("bias", at::zeros({options.dim()}));
  }
}

void NormImpl::reset_parameters() {
  torch::nn::init::ones_(weight);
  if (bias.defined()) torch::nn::init::zeros_(bias);
}

void NormImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kNorm)
      .show("dim", options.dim())
      .show("kind", to_string(options.kind()))
      .show("eps", options.eps())
      .option("bias", options.bias(), true);
}

at::Tensor NormImpl::forward(const at::Tensor& x) { return normalize(x, weight, bias); }

at::Tensor NormImpl::normalize(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias) const {
  HEED_CHECK(x.defined() && x.dim() >= 1, "{}: x must be defined and have a last dimension", kNorm);
  HEED_CHECK(x.size(-1) == options.dim(), "{}: x dim {} ({}) must equal dim ({}); x {}", kNorm,
             x.dim() - 1, x.size(-1), options.dim(), detail::shape(x));
  detail::check_module_dtype(kNorm, "x", x, weight);
  if (options.kind() == NormKind::rms_norm) {
    return detail::rms_norm(x, weight, options.eps());
  }
  return at::layer_norm(x, {options.dim()}, weight, bias, options.eps());
}

}  // namespace heed
