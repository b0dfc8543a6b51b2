#include <c10/util/Exception.h>
#include <heed/attend.h>

#include "attend/choose_path.h"
#include "attend/paths/paths.h"

namespace heed {

namespace {

detail::Attended run(const detail::Problem& problem) {
  switch (detail::choose_path(problem)) {
    case AttendPath::decode:
      return detail::decode_path::attend(problem);
    case AttendPath::fused:
      return detail::fused_path::attend(problem);
    case AttendPath::block:
      return detail::block_path::attend(problem);
    case AttendPath::math:
      return detail::math_path::attend(problem);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown AttendPath");
}

}  // namespace

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttendOptions& options) {
  return run(detail::make_problem("attend", query, key, value, options)).output;
}

std::tuple<at::Tensor, at::Tensor> attend_with_weights(const at::Tensor& query,
                                                       const at::Tensor& key,
                                                       const at::Tensor& value,
                                                       const AttendOptions& options) {
  const auto attended = run(detail::make_problem("attend_with_weights", query, key, value, options,
                                                 detail::Wanted::output_and_weights));
  return {attended.output, attended.weights};
}

std::tuple<at::Tensor, at::Tensor> attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value,
                                                   const AttendOptions& options) {
  const auto attended = run(detail::make_problem("attend_with_lse", query, key, value, options,
                                                 detail::Wanted::output_and_lse));
  return {attended.output, attended.lse};
}

AttendPath attend_path(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const AttendOptions& options) {
  return detail::choose_path(detail::make_problem("attend_path", query, key, value, options));
}

}  // namespace heed
