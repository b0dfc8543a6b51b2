// SPDX-License-Identifier: BSD-3-Clause
#include "attend/attend_lengths.h"

#include "attend/choose_path.h"

namespace heed::detail {

at::Tensor attend_lengths(const char* function, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& query_lengths,
                          const at::Tensor& key_lengths, const AttendOptions& options) {
  auto problem = make_problem(function, query, key, value, options);
  problem.sequences =
      PaddedSequences{query_lengths.defined() ? query_lengths.contiguous() : query_lengths,
                      key_lengths.contiguous(), /*enough_keys=*/true};
  return attend_problem(problem).output;
}

}  // namespace heed::detail
