#pragma once

#include "core/problem.h"

#include <tuple>

namespace heed::detail {

/// AttendPath::decode: without gradients and dropout, on the CPU, not for float64; the last strides
/// of key and value are 1.
at::Tensor attend_decode(const Problem& problem);

/// AttendPath::fused.
at::Tensor attend_fused(const Problem& problem);

/// AttendPath::block.
at::Tensor attend_block(const Problem& problem);

/// {output, weights}, without gradients and dropout, on the CPU.
std::tuple<at::Tensor, at::Tensor> attend_block_with_weights(const Problem& problem);

/// AttendPath::math: {output, weights}.
std::tuple<at::Tensor, at::Tensor> attend_math(const Problem& problem);

}  // namespace heed::detail
