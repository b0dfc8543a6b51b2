#pragma once

#include <ATen/ops/zeros.h>
#include <heed/alibi.h>
#include <heed/qk_norm.h>
#include <torch/nn/init.h>

#include <optional>
#include <ostream>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "modules/head_projections.h"

/// What the options of MultiHeadAttention and GroupQueryAttention have in common.

namespace heed::detail {

template <typename Options>
void check_head_options(const char* function, const Options& options) {
  check_score_options(function, AttendOptions()
                                    .dropout(options.dropout())
                                    .scale(options.scale())
                                    .window(options.window())
                                    .softcap(options.softcap()));
}

/// D: the option, or E / H, which must then have no remainder.
template <typename Options>
int64_t checked_head_dim(const char* function, const Options& options, const char* heads_name,
                         int64_t heads) {
  check_positive(function, "emb_dim", options.emb_dim());
  check_positive(function, heads_name, heads);
  if (options.head_dim()) return *options.head_dim();
  check_divisible(function, "emb_dim", options.emb_dim(), heads_name, heads);
  return options.emb_dim() / heads;
}

/// Makes the parts of `module` that its options ask for.
template <typename Module>
void register_head_parts(const char* function, Module& module, int64_t heads, int64_t head_dim) {
  const auto& options = module.options;
  module.rotary = make_rotary(function, options.rotary(), head_dim);
  if (const auto& norm = options.qk_norm()) {
    const auto norm_options = NormOptions(head_dim).kind(norm->kind()).eps(norm->eps());
    module.q_norm = module.register_module("q_norm", Norm(norm_options));
    module.k_norm = module.register_module("k_norm", Norm(norm_options));
  }
  if (options.sinks()) module.sinks = module.register_parameter("sinks", at::zeros({heads}));
}

template <typename Module>
HeadTransforms head_transforms(const Module& module) {
  const auto& norm = module.options.qk_norm();
  return {module.rotary, module.q_norm, module.k_norm, norm && norm->after_rotary()};
}

template <typename Module>
void reset_head_parts(Module& module) {
  if (module.q_norm) module.q_norm->reset_parameters();
  if (module.k_norm) module.k_norm->reset_parameters();
  if (module.sinks.defined()) torch::nn::init::zeros_(module.sinks);
}

/// Options of one call.
template <typename Module>
AttendOptions head_call_options(const Module& module, int64_t heads,
                                const std::optional<at::Tensor>& mask) {
  const auto& options = module.options;
  auto call = call_options(mask, options.dropout(), module.is_training())
                  .scale(options.scale())
                  .causal(options.causal())
                  .window(options.window())
                  .softcap(options.softcap());
  if (options.alibi()) call.alibi_slopes(alibi_slopes(heads, module.fc_q->weight.device()));
  if (module.sinks.defined()) call.sinks(module.sinks);
  return call;
}

template <typename T>
void print_option(std::ostream& stream, const char* name, const std::optional<T>& option) {
  if (option) stream << ", " << name << "=" << *option;
}

template <typename Options>
void print_head_options(std::ostream& stream, const Options& options,
                        const RotaryEmbedding& rotary) {
  if (!options.input_bias()) stream << ", input_bias=false";
  if (!options.output_bias()) stream << ", output_bias=false";
  print_option(stream, "scale", options.scale());
  if (options.causal()) stream << ", causal=true";
  print_option(stream, "window", options.window());
  print_option(stream, "softcap", options.softcap());
  if (const auto& norm = options.qk_norm()) stream << ", qk_norm=" << to_string(norm->kind());
  if (options.alibi()) stream << ", alibi=true";
  if (options.sinks()) stream << ", sinks=true";
  if (rotary) stream << ", rotary=" << *rotary;
}

}  // namespace heed::detail
