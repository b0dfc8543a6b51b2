// SPDX-License-Identifier: BSD-3-Clause
#include <heed/clip_grad_norm.h>

#include <cmath>

#include "core/error.h"
#include "models/gradients.h"

namespace heed {

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       bool error_if_nonfinite) {
  constexpr auto kFunction = "clip_grad_norm_";
  detail::check_max_norm(kFunction, max_norm);
  for (size_t i = 0; i < parameters.size(); ++i) {
    HEED_CHECK(parameters[i].defined(), "{}: parameter {} must be defined", kFunction, i);
    const auto& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    detail::check_changed_gradient(kFunction, gradient,
                                   [&] { return fmt::format("parameter {}", i); });
  }
  const auto gradients = detail::distinct_gradients(parameters);
  const auto norm = detail::norm_of(gradients);
  HEED_CHECK(!error_if_nonfinite || std::isfinite(norm),
             "{}: norm ({}) of the gradients must be finite", kFunction, norm);
  detail::limit_norm(gradients, norm, max_norm);
  return norm;
}

}  // namespace heed
