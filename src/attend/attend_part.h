// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/export.h>

#include <array>

#include "core/problem.h"

/// Attention in parts, for libraries that split one call among processes and join the parts'
/// results by their lse. Nothing is recorded for autograd unless a function says so.

namespace heed::detail {

struct PartResult {
  at::Tensor output;  // [B, H, L, Dv]
  at::Tensor lse;     // [B, H, L]
};

/// Computes a part of a call. Errors begin with `function`.
HEED_API PartResult attend_part(const char* function, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const AttendOptions& options, const Part& part);

/// Computes a part whose queries have all of their keys, recorded for autograd. Returns the output
/// [B, H, L, Dv] in the query's dtype.
HEED_API at::Tensor attend_whole_rows(const char* function, const at::Tensor& query,
                                      const at::Tensor& key, const at::Tensor& value,
                                      const AttendOptions& options, const Part& part);

/// The gradients of a part, in the order of kProblemTensors; those not wanted are undefined.
/// `whole` are the output and lse of the part's queries over all parts. Only one part may have
/// sinks.
HEED_API std::array<at::Tensor, kGradientTensors> part_gradients(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttendOptions& options, const Part& part, const PartResult& whole,
    const at::Tensor& output_gradient, const WantedGradients& wanted);

}  // namespace heed::detail
