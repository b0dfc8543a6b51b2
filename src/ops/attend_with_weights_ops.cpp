// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <heed/attend.h>

#include "ops/recomputed.h"

/// The operator attend_with_weights.

namespace heed::detail {

namespace {

struct WeightsCall : AttendCall {
  static constexpr auto kName = "attend_with_weights";
  static constexpr const char* kResults[] = {"output", "weights"};

  static std::string arguments() { return attend_arguments(); }
  static WeightsCall read(Arguments& arguments, Integers integers) {
    return {read_attend(arguments, integers)};
  }
  Results compute() const {
    const auto [output, weights] = attend_with_weights(query, key, value, options);
    return {by_token(output), weights.contiguous()};
  }
  Results empty() const {
    check_known(kName, *this);
    const auto weights =
        at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2), key.sym_size(2)},
                         query.options());
    return {empty_by_token(query, value), weights};
  }
};

using WeightsOperator = Recomputed<WeightsCall>;

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) { WeightsOperator::define_operators(library); }

TORCH_LIBRARY_IMPL(heed, CPU, library) { WeightsOperator::register_on_device(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { WeightsOperator::register_on_device(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) { WeightsOperator::register_on_meta(library); }

TORCH_LIBRARY_IMPL(heed, Autograd, library) { WeightsOperator::register_for_autograd(library); }

}  // namespace heed::detail
