#include "attend/attend_lengths.h"

#include "attend/choose_path.h"
#include "attend/score_mask.h"
#include "attend/sequences.h"
#include "core/dtypes.h"

namespace heed::detail {

at::Tensor attend_lengths(const char* function, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& query_lengths,
                          const at::Tensor& key_lengths, const AttendOptions& options) {
  auto problem = make_problem(function, query, key, value, options);
  problem.padded = PaddedSequences{query_lengths, key_lengths};
  if (query.is_cuda()) return run(problem).output;
  // heed's kernels read a mask, and ALiBi as a bias.
  const auto own = with_documents(problem);
  problem.mask = allowed_keys(own);
  problem.bias = added_scores(own, compute_dtype(query.scalar_type()));
  problem.alibi_slopes = at::Tensor();
  problem.causal = false;
  problem.window.reset();
  problem.padded.reset();
  return run(problem).output;
}

}  // namespace heed::detail
