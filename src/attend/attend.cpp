// SPDX-License-Identifier: BSD-3-Clause
#include <heed/attend.h>

#include "attend/choose_path.h"
#include "core/autocast.h"

namespace heed {

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttendOptions& options) {
  if (detail::is_autocast(query)) {
    return detail::with_autocast(attend, query, key, value, options);
  }
  return detail::attend_problem(detail::make_problem("attend", query, key, value, options)).output;
}

std::tuple<at::Tensor, at::Tensor> attend_with_weights(const at::Tensor& query,
                                                       const at::Tensor& key,
                                                       const at::Tensor& value,
                                                       const AttendOptions& options) {
  if (detail::is_autocast(query)) {
    return detail::with_autocast(attend_with_weights, query, key, value, options);
  }
  const auto attended = detail::attend_problem(detail::make_problem(
      "attend_with_weights", query, key, value, options, detail::Wanted::output_and_weights));
  return {attended.output, attended.weights};
}

std::tuple<at::Tensor, at::Tensor> attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value,
                                                   const AttendOptions& options) {
  if (detail::is_autocast(query)) {
    return detail::with_autocast(attend_with_lse, query, key, value, options);
  }
  const auto attended = detail::attend_problem(detail::make_problem(
      "attend_with_lse", query, key, value, options, detail::Wanted::output_and_lse));
  return {attended.output, attended.lse};
}

AttendPath attend_path(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const AttendOptions& options) {
  if (detail::is_autocast(query)) {
    return detail::with_autocast(attend_path, query, key, value, options);
  }
  return detail::choose_path(
      detail::without_unseen_keys(detail::make_problem("attend_path", query, key, value, options)));
}

}  // namespace heed
