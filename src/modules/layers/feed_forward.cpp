// SPDX-License-Identifier: BSD-3-Clause
#include <heed/feed_forward.h>

#include <ATen/TensorOperators.h>

#include <cmath>
#include <utility>

#include "core/checks.h"
#include "cpu/layers/swiglu.h"
#include "modules/count.h"
#include "modules/layers/activation.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kFeedForward = "FeedForward";

using detail::Count;

at::Tensor gated(const FeedForwardOptions& options, const at::Tensor& gate, const at::Tensor& up) {
  if (options.activation() != Activation::swiglu) {
    return detail::activate(options.activation(), gate) * up;
  }
  return detail::swiglu(gate, up, detail::swiglu_form(options));
}

void check_swiglu(const FeedForwardOptions& options) {
  const auto beta = options.swiglu_beta(), offset = options.swiglu_offset();
  const auto& limit = options.swiglu_limit();
  for (const auto& [name, value] :
       {std::pair("swiglu_beta", beta), std::pair("swiglu_offset", offset)}) {
    HEED_CHECK(std::isfinite(value), "{}: {} ({}) must be finite", kFeedForward, name, value);
  }
  HEED_CHECK(!limit || (std::isfinite(*limit) && *limit > 0.0),
             "{}: swiglu_limit ({}) must be finite and above 0", kFeedForward, limit.value_or(0.0));
  const bool is_plain = beta == 1.0 && !limit && offset == 0.0;
  HEED_CHECK(is_plain || options.activation() == Activation::swiglu,
             "{}: swiglu_beta, swiglu_limit and swiglu_offset must not be given for activation {}",
             kFeedForward, to_string(options.activation()));
}

int64_t hidden_dim(const FeedForwardOptions& options) {
  if (options.hidden_dim()) return *options.hidden_dim();
  const Count width = options.emb_dim();
  if (!detail::is_gated(options.activation())) return (4 * width).value();
  const auto third = (8 * width + 2).value() / 3;
  return (third + 7) / 8 * 8;
}

}  // namespace

std::string_view to_string(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return "relu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::tanh:
      return "tanh";
    case Activation::gelu_sigmoid:
      return "gelu_sigmoid";
    case Activation::swiglu:
      return "swiglu";
    case Activation::geglu:
      return "geglu";
    case Activation::geglu_tanh:
      return "geglu_tanh";
    case Activation::reglu:
      return "reglu";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown Activation");
}

FeedForwardImpl::FeedForwardImpl(const FeedForwardOptions& options) : options(options) { reset(); }

void FeedForwardImpl::reset() {
  detail::check_positive(kFeedForward, "emb_dim", options.emb_dim());
  const auto hidden = hidden_dim(options);
  detail::check_positive(kFeedForward, "hidden_dim", hidden);
  detail::check_probability(kFeedForward, "dropout", options.dropout());
  check_swiglu(options);
  const auto width = options.emb_dim();
  fc_in = register_module("fc_in", detail::make_linear(width, hidden, options.bias()));
  if (detail::is_gated(options.activation())) {
    fc_gate = register_module("fc_gate", detail::make_linear(width, hidden, options.bias()));
  }
  fc_out = register_module("fc_out", detail::make_linear(hidden, width, options.bias()));
}

void FeedForwardImpl::reset_parameters() {
  detail::reset_parameters(fc_in);
  if (fc_gate) detail::reset_parameters(fc_gate);
  detail::reset_parameters(fc_out);
}

void FeedForwardImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kFeedForward)
      .show("emb_dim", options.emb_dim())
      .show("hidden_dim", hidden_dim(options))
      .show("activation", to_string(options.activation()))
      .show("dropout", options.dropout())
      .option("bias", options.bias(), true)
      .option("swiglu_beta", options.swiglu_beta(), 1.0)
      .option("swiglu_limit", options.swiglu_limit())
      .option("swiglu_offset", options.swiglu_offset(), 0.0);
}

std::shared_ptr<torch::nn::Module> FeedForwardImpl::clone(
    const std::optional<at::Device>& device) const {
  detail::check_no_subclass(kFeedForward, *this);
  return Cloneable::clone(device);
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) {
  detail::check_rows(kFeedForward, "x", x, fc_in->weight);
  if (detail::sharing(*fc_in).sequence_parts() > 1) detail::check_rank(kFeedForward, "x", x, 3);
  const auto input = detail::sharing(*fc_in).enter(x);
  at::Tensor hidden;
  if (fc_gate) {
    const auto gate_and_up = detail::project_together({fc_gate, fc_in}, input);
    hidden = gated(options, gate_and_up[0], gate_and_up[1]);
  } else {
    hidden = detail::project_activated(fc_in, input, options.activation());
  }
  {
    const detail::OwnRandomNumbers own(fc_out, x.device(), is_training() ? options.dropout() : 0.0);
    hidden = detail::drop_out(hidden, options.dropout(), is_training());
  }
  return detail::project(fc_out, hidden);
}

}  // namespace heed
