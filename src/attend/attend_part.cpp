// SPDX-License-Identifier: BSD-3-Clause
#include "attend/attend_part.h"

#include <ATen/core/grad_mode.h>

#include "attend/choose_path.h"
#include "attend/paths/paths.h"

namespace heed::detail {

PartResult attend_part(const char* function, const at::Tensor& query, const at::Tensor& key,
                       const at::Tensor& value, const AttendOptions& options, const Part& part) {
  const at::NoGradGuard no_grad;
  const auto attended = attend_problem(
      make_problem(function, query, key, value, options, Wanted::output_and_lse, part));
  return {attended.output, attended.lse};
}

at::Tensor attend_whole_rows(const char* function, const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const AttendOptions& options,
                             const Part& part) {
  return attend_problem(make_problem(function, query, key, value, options, Wanted::output, part))
      .output.to(query.scalar_type());
}

Gradients part_gradients(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttendOptions& options, const Part& part, const PartResult& whole,
                         const at::Tensor& output_gradient, const WantedGradients& wanted) {
  const at::NoGradGuard no_grad;
  const auto problem =
      make_problem("attend", query, key, value, options, Wanted::output_and_lse, part);
  const Attended attended{whole.output, {}, whole.lse};
  const auto gradients = path_of(choose_path(problem)).gradients_of_part;
  TORCH_INTERNAL_ASSERT(gradients != nullptr);
  return gradients(problem, attended, output_gradient, wanted);
}

}  // namespace heed::detail
