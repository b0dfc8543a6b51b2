// SPDX-License-Identifier: BSD-3-Clause
#include <heed/attend.h>
#include <heed/scaled_dot_product_attention.h>

#include <cmath>

#include "core/checks.h"
#include "modules/attentions/calls.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kScaledDotProductAttention = "ScaledDotProductAttention";

}  // namespace

ScaledDotProductAttentionImpl::ScaledDotProductAttentionImpl(
    const ScaledDotProductAttentionOptions& options)
    : options(options) {
  reset();
}

ScaledDotProductAttentionImpl::ScaledDotProductAttentionImpl(double temperature, double dropout)
    : ScaledDotProductAttentionImpl(
          ScaledDotProductAttentionOptions(temperature).dropout(dropout)) {}

void ScaledDotProductAttentionImpl::reset() {
  HEED_CHECK(std::isnormal(options.temperature()), "{}: temperature ({}) must be finite and not 0",
             kScaledDotProductAttention, options.temperature());
  detail::check_probability(kScaledDotProductAttention, "dropout", options.dropout());
}

void ScaledDotProductAttentionImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kScaledDotProductAttention)
      .show("temperature", options.temperature())
      .show("dropout", options.dropout());
}

std::tuple<at::Tensor, at::Tensor> ScaledDotProductAttentionImpl::forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask) {
  return attend_with_weights(
      query, key, value,
      detail::call_options(kScaledDotProductAttention, mask, options.dropout(), is_training())
          .scale(1.0 / options.temperature()));
}

}  // namespace heed
