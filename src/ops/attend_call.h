#pragma once

#include <heed/attend_options.h>

#include <string>

#include "ops/traced.h"

namespace heed::detail {

/// The options that the operators attend and attend_varlen share, as a part of their schemas.
inline constexpr auto kSharedOptions =
    "bool causal=False, int? window=None, float dropout=0.0, float? scale=None, "
    "float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None";

void read_shared_options(Arguments& arguments, AttendOptions& options);

/// The arguments in the schema of the operator attend. Its passes have the same and others.
std::string attend_arguments();

struct AttendCall {
  at::Tensor query, key, value;
  AttendOptions options;
};

AttendCall read_attend(Arguments& arguments);

/// The tensors of a call that may carry gradients, in the order of kProblemTensors: query, key,
/// value, and bias and sinks if it has them.
variable_list differentiable_tensors(const AttendCall& call);

/// Gives an output [B, H, L, Dv] the memory order [B, L, H, Dv], in which heads merge without a
/// copy. Most kernels write this order already.
at::Tensor by_token(const at::Tensor& output);
/// An output [B, H, L, Dv] for a call with meta tensors, with the strides that by_token gives.
at::Tensor empty_by_token(const at::Tensor& query, const at::Tensor& value);

}  // namespace heed::detail
