// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <heed/attend.h>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "ops/recomputed.h"

/// The operators attend_varlen and attend_varlen_with_lse.

namespace heed::detail {

namespace {

struct VarlenCall : AttendCall {
  at::Tensor query_offsets, key_offsets;
  std::optional<int64_t> longest_query, longest_key;

  static std::string arguments() {
    return "Tensor query, Tensor key, Tensor value, Tensor query_offsets, Tensor key_offsets, *, "
           "SymInt? longest_query=None, SymInt? longest_key=None, " +
           options_schema(Taker::varlen);
  }
};

template <typename Call>
Call read_varlen(Arguments& arguments, Integers integers) {
  Call call;
  for (auto* tensor :
       {&call.query, &call.key, &call.value, &call.query_offsets, &call.key_offsets}) {
    *tensor = arguments.next<at::Tensor>();
  }
  auto ahead = arguments;
  const bool is_given[] = {ahead.next<std::optional<c10::SymInt>>().has_value(),
                           ahead.next<std::optional<c10::SymInt>>().has_value()};
  HEED_CHECK(is_given[0] == is_given[1], "{}: longest_query and longest_key must be given together",
             Call::kName);
  call.longest_query = read_integer(arguments, integers, call);
  call.longest_key = read_integer(arguments, integers, call);
  read_options(arguments, Taker::varlen, integers, call);
  return call;
}

/// Calls `function` with the tensors, the longest lengths if they are given, and the options.
template <typename Function>
auto call_varlen(const Function& function, const VarlenCall& call) {
  const auto longest_query = call.longest_query, longest_key = call.longest_key;
  if (!longest_query || !longest_key) {
    return function(call.query, call.key, call.value, call.query_offsets, call.key_offsets,
                    call.options);
  }
  return function(call.query, call.key, call.value, call.query_offsets, call.key_offsets,
                  *longest_query, *longest_key, call.options);
}

/// The output of a call with meta tensors. Offsets are checked only when the call runs, because
/// meta tensors hold no numbers.
at::Tensor empty_output(const char* function, const VarlenCall& call) {
  const auto &query = call.query, &key = call.key, &value = call.value;
  const auto& options = call.options;
  if (has_symbolic_sizes({query, key, value, call.query_offsets, call.key_offsets})) {
    check_rank(function, "query", query, 3);
    check_rank(function, "value", value, 3);
  } else {
    check_tensors(function, query, key, value, /*rank=*/3);
    check_head_tensors(function, query, options);
  }
  check_score_options(function, options);
  check_precision(function, query.scalar_type(), options);
  return at::empty_symint({query.sym_size(0), query.sym_size(1), value.sym_size(2)},
                          query.options());
}

struct OutputCall : VarlenCall {
  static constexpr auto kName = "attend_varlen";
  static constexpr const char* kResults[] = {"output"};

  static OutputCall read(Arguments& arguments, Integers integers) {
    return read_varlen<OutputCall>(arguments, integers);
  }
  Results compute() const {
    const auto function = [](const auto&... arguments) { return attend_varlen(arguments...); };
    return {call_varlen(function, *this).contiguous()};
  }
  Results empty() const { return {empty_output(kName, *this)}; }
};

struct LseCall : VarlenCall {
  static constexpr auto kName = "attend_varlen_with_lse";
  static constexpr const char* kResults[] = {"output", "lse"};

  static LseCall read(Arguments& arguments, Integers integers) {
    return read_varlen<LseCall>(arguments, integers);
  }
  Results compute() const {
    const auto function = [](const auto&... arguments) {
      return attend_varlen_with_lse(arguments...);
    };
    const auto [output, lse] = call_varlen(function, *this);
    return {output.contiguous(), lse.contiguous()};
  }
  Results empty() const {
    const auto lse = at::empty_symint({query.sym_size(0), query.sym_size(1)},
                                      query.options().dtype(compute_dtype(query.scalar_type())));
    return {empty_output(kName, *this), lse};
  }
};

using VarlenOperator = Recomputed<OutputCall>;
using VarlenLseOperator = Recomputed<LseCall>;

void register_varlen(torch::Library& library) {
  VarlenOperator::register_on_device(library);
  VarlenLseOperator::register_on_device(library);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  VarlenOperator::define_operators(library);
  VarlenLseOperator::define_operators(library);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { register_varlen(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { register_varlen(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) {
  VarlenOperator::register_on_meta(library);
  VarlenLseOperator::register_on_meta(library);
}

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  VarlenOperator::register_for_autograd(library);
  VarlenLseOperator::register_for_autograd(library);
}

}  // namespace heed::detail
