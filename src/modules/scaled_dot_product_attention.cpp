#include <heed/scaled_dot_product_attention.h>

#include <cmath>

#include "core/checks.h"
#include "modules/head_projections.h"

namespace heed {

ScaledDotProductAttentionImpl::ScaledDotProductAttentionImpl(
    const ScaledDotProductAttentionOptions& options)
    : options(options) {
  reset();
}

ScaledDotProductAttentionImpl::ScaledDotProductAttentionImpl(double temperature, double dropout)
    : ScaledDotProductAttentionImpl(
          ScaledDotProductAttentionOptions(temperature).dropout(dropout)) {}

void ScaledDotProductAttentionImpl::reset() {
  constexpr auto kName = "ScaledDotProductAttention";
  HEED_CHECK(std::isnormal(options.temperature()), "{}: temperature ({}) must be finite and not 0",
             kName, options.temperature());
  detail::check_probability(kName, "dropout", options.dropout());
}

void ScaledDotProductAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::ScaledDotProductAttention(temperature=" << options.temperature()
         << ", dropout=" << options.dropout() << ")";
}

std::tuple<at::Tensor, at::Tensor> ScaledDotProductAttentionImpl::forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask) {
  return attend_with_weights(query, key, value,
                             detail::call_options(mask, options.dropout(), is_training())
                                 .scale(1.0 / options.temperature()));
}

}  // namespace heed
