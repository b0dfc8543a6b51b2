#pragma once

#include "problem.h"

#include <tuple>

namespace heed::detail {

/// AttendPath::fused.
at::Tensor attend_fused(const Problem& problem);

/// AttendPath::math: {output, weights}.
std::tuple<at::Tensor, at::Tensor> attend_math(const Problem& problem);

}  // namespace heed::detail
