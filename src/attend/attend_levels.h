// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

#include "attend/paged_call.h"

namespace heed::detail {

/// The query [T, H, D] of a call of `attend_paged`, and pools of keys and values.
struct PagedTensors {
  const at::Tensor &query, &keys, &values;
};

/// Computes a call with checked arguments, for inference: [T, H, Dv]. Pages with which several
/// sequences begin are read once for the queries of all of them, and the results for parts of the
/// keys are merged (Juravsky et al. 2024, arXiv:2402.05099). The options' parents are ignored for
/// those of the call.
at::Tensor attend_levels(const PagedTensors& tensors, const PagedCall& call,
                         const AttendOptions& options);

}  // namespace heed::detail
