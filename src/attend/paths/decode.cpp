// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/decode/decode.h"

#include "attend/paths/paths.h"
#include "cpu/capability.h"

/// The path decode: inference on the CPU, without dropout and without returned weights; also with
/// quantized keys and values. It is chosen for few queries. heed's kernel cuts the keys into
/// splits, reads each key and value once for all query heads of its group, and merges the splits'
/// results by their maxima and sums. Memory besides the result: O(L). See "Decode" in
/// docs/kernels.md.

namespace heed::detail::decode_path {

bool takes(const Problem& problem) {
  return has_kernels() && problem.query.is_cpu() && !problem.is_empty() && !problem.needs_grad() &&
         !problem.has_tangent() && problem.dropout == 0.0 &&
         problem.wanted != Wanted::output_and_weights && decodes(problem.query.scalar_type()) &&
         problem.key.stride(3) == 1 && problem.value.stride(3) == 1 &&
         (!problem.is_quantized() || problem.has_quantized_rows());
}

Attended attend(const Problem& problem) {
  const auto result = decode(problem);
  return {result.output, {}, result.lse};
}

}  // namespace heed::detail::decode_path
