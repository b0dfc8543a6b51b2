#pragma once

#include <heed/attend_options.h>

#include <string>

#include "ops/traced.h"

namespace heed::detail {

/// The options that `attend` and `attend_varlen` share.
inline constexpr auto kSharedOptions =
    "bool causal=False, int? window=None, float dropout=0.0, float? scale=None, "
    "float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None";

void read_shared_options(Arguments& arguments, AttendOptions& options);

/// The arguments of `attend`, and of those operators that have them among others.
std::string attend_arguments();

struct AttendCall {
  at::Tensor query, key, value;
  AttendOptions options;
};

AttendCall read_attend(Arguments& arguments);

/// Those of query, key, value, bias and sinks that a call has, in the order of kProblemTensors.
variable_list differentiable_tensors(const AttendCall& call);

/// [B, H, L, Dv] as attend's kernels write it, so that heads merge without a copy: [B, L, H, Dv].
at::Tensor by_token(const at::Tensor& output);
/// The same without memory, for results of these sizes.
at::Tensor empty_by_token(const at::Tensor& query, const at::Tensor& value);

}  // namespace heed::detail
