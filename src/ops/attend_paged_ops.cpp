// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <heed/attend_paged.h>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "ops/attend_call.h"

/// The operator attend_paged. It has no gradients.

namespace heed::detail {

namespace {

constexpr auto kPagedOperator = "attend_paged";

/// A call whose key and value are pages.
struct PagedOperatorCall : AttendCall {
  at::Tensor page_table, query_offsets, key_lengths;
};

PagedOperatorCall read_paged(Arguments& arguments, Integers integers) {
  PagedOperatorCall call;
  for (auto* tensor : {&call.query, &call.key, &call.value, &call.page_table, &call.query_offsets,
                       &call.key_lengths}) {
    *tensor = arguments.next<at::Tensor>();
  }
  read_options(arguments, Taker::paged, integers, call);
  return call;
}

Results paged_own(Arguments& arguments) {
  const auto call = read_paged(arguments, Integers::known);
  return {attend_paged(call.query, call.key, call.value, call.page_table, call.query_offsets,
                       call.key_lengths, call.options)
              .contiguous()};
}

Results paged_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return paged_own(arguments);
}

/// Table, offsets and lengths are checked only when the call runs, because meta tensors hold no
/// numbers.
Results paged_on_meta(Arguments& arguments) {
  const auto call = read_paged(arguments, Integers::may_be_symbols);
  const auto& query = call.query;
  check_rank(kPagedOperator, "query", query, 3);
  check_rank(kPagedOperator, "key_pages", call.key, 4);
  check_rank(kPagedOperator, "value_pages", call.value, 4);
  check_floating(kPagedOperator, "query", query);
  check_score_options(kPagedOperator, call.options);
  check_precision(kPagedOperator, query.scalar_type(), call.options);
  return {at::empty_symint({query.sym_size(0), query.sym_size(1), call.value.sym_size(3)},
                           query.options())};
}

CallToRecord described_paged(Arguments& arguments) {
  return to_record(read_paged(arguments, Integers::may_be_symbols));
}

/// A call that needs a gradient is an error of heed's function.
Results paged_traced(const Stack& stack, const CallToRecord& /*to_record*/) {
  Arguments arguments(stack, stack.size());
  return paged_own(arguments);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  define(library,
         "attend_paged(Tensor query, Tensor key_pages, Tensor value_pages, Tensor page_table, "
         "Tensor query_offsets, Tensor key_lengths, *, " +
             options_schema(Taker::paged) + ") -> Tensor",
         /*draws=*/false);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { library.impl("attend_paged", boxed<paged_on_device>()); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { library.impl("attend_paged", boxed<paged_on_device>()); }

TORCH_LIBRARY_IMPL(heed, Meta, library) { library.impl("attend_paged", boxed<paged_on_meta>()); }

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  library.impl("attend_paged", torch::CppFunction::makeFromBoxedFunction<
                                   &call_recorded<paged_own, described_paged, paged_traced>>());
}

}  // namespace heed::detail
