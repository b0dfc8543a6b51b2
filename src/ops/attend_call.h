// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend_options.h>

#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>

#include "core/problem.h"
#include "ops/boxed.h"
#include "ops/traced.h"

namespace heed::detail {

/// The operators that take options: all take some of them.
enum class Taker : unsigned { attend = 1, varlen = 2, paged = 4 };

/// The options of AttendOptions that an operator takes, as a part of its schema.
std::string options_schema(Taker taker);

/// Whether an operator's integers may be symbols, because a compiler traces the call.
enum class Integers { known, may_be_symbols };

struct AttendCall {
  at::Tensor query, key, value;
  AttendOptions options;
  bool has_symbols = false;  // whether integers are symbols, which `options` lacks
};

/// An integer of a call; none if it is absent or a symbol.
std::optional<int64_t> read_integer(Arguments& arguments, Integers integers, AttendCall& call);

/// Reads what `options_schema` describes.
void read_options(Arguments& arguments, Taker taker, Integers integers, AttendCall& call);

/// The arguments of attend, attend_with_weights and attend_with_lse. Their passes have the same and
/// others.
std::string attend_arguments();
AttendCall read_attend(Arguments& arguments, Integers integers);

/// Checks a call with meta tensors. Symbols are not checked here, but when the call runs.
void check_known(const char* function, const AttendCall& call);

/// The names of the tensors that may carry gradients, in the order of kProblemTensors.
inline constexpr const char* kGradientNames[] = {"query", "key",           "value",       "bias",
                                                 "sinks", "relative_bias", "alibi_slopes"};
static_assert(std::size(kGradientNames) == kGradientTensors);

/// The tensors of a call that may carry gradients, in the order of kGradientNames; null where they
/// are absent.
using DifferentiableTensors = std::array<at::Tensor*, kGradientTensors>;
DifferentiableTensors differentiable_tensors(AttendCall& call);

/// The tensors among them that are present, and the call's dropout.
CallToRecord to_record(AttendCall call);
/// Which of the tensors require grad: bool[kGradientTensors].
c10::List<bool> requiring(AttendCall call);

/// The arguments of a pass that say which gradients are wanted, and the results of a backward pass.
std::string wanted_schema();
std::string gradients_schema();
/// Reads what `wanted_schema` describes. What was compiled for an earlier heed lists fewer tensors
/// and wants no gradients of the others.
inline WantedGradients read_wanted(Arguments& arguments) {
  return arguments.next_flags<std::tuple_size_v<WantedGradients>>();
}

/// Gives an output [B, H, L, Dv] the memory order [B, L, H, Dv], in which heads merge without a
/// copy. Most kernels write this order already.
at::Tensor by_token(const at::Tensor& output);
/// An output [B, H, L, Dv] for a call with meta tensors, with the strides that by_token gives.
at::Tensor empty_by_token(const at::Tensor& query, const at::Tensor& value);

}  // namespace heed::detail
