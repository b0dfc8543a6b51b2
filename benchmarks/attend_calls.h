// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>

#include <string>

namespace heed::bench {

struct CallShape {
  int64_t B, H, G, L, S, D;
};

/// A call of `attend`, with its gradients if query requires them.
struct AttendCall {
  at::Tensor query, key, value, output_gradient;
  AttendOptions options;
  at::Tensor learned = {};  // what else requires grad, or undefined
};

/// Draws the tensors of a call: heads in the memory of [B, L, H, D], as the modules split them.
AttendCall make_call(const CallShape& s, bool training);

/// The output; in training the gradient of query, those of the others computed too.
/// @{
at::Tensor run_call(const AttendCall& in);
at::Tensor finish_call(const AttendCall& in, const at::Tensor& output);
/// @}

/// The name of a row: <name>/BxHxLxSxD, or <name>/training/...
std::string call_name(const std::string& name, const CallShape& s, bool training);

}  // namespace heed::bench
