#pragma once

#include <torch/nn/modules/linear.h>

#include <optional>
#include <ostream>

#include "checks.h"
#include "head_projections.h"

/// What the options of MultiHeadAttention and GroupQueryAttention have in common.

namespace heed::detail {

template <typename Options>
void check_head_options(const char* function, const Options& options) {
  check_score_options(
      function,
      AttendOptions().dropout(options.dropout()).scale(options.scale()).window(options.window()));
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

inline torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

template <typename Options>
AttendOptions head_call_options(const Options& options, const std::optional<at::Tensor>& mask,
                                bool training) {
  return call_options(mask, options.dropout(), training)
      .scale(options.scale())
      .causal(options.causal())
      .window(options.window());
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
  if (rotary) stream << ", rotary=" << *rotary;
}

}  // namespace heed::detail
