#include "attend/paged_run.h"

#include <ATen/ops/cat.h>
#include <heed/merge_attention.h>

#include <algorithm>
#include <utility>

#include "attend/choose_path.h"
#include "attend/sequences.h"
#include "core/offsets.h"
#include "core/to_device.h"
#include "cpu/capability.h"

namespace heed::detail {

namespace {

/// From so many shared keys on, reading them once is worth merging two results.
constexpr int64_t kWorthSharing = 256;

int64_t page_size(const PagedRun& run) { return run.keys.size(2); }

Problem problem_of(const PagedRun& run, const AttendOptions& options) {
  const auto device = run.query.device();
  auto problem = make_paged_problem(run.query, run.keys, run.values,
                                    {{{}, to_device(run.lengths, device)},
                                     to_device(run.table.contiguous(), device),
                                     longest(run.lengths)},
                                    options);
  if (run.parents.defined()) set_draft(problem, run.parents, run.lengths);
  return device.is_cpu() && has_kernels() ? problem : without_pages(std::move(problem));
}

/// Output and lse of a run, in the dtype of the computation, to be merged with those of other
/// keys.
Attended attend_part_of(const PagedRun& run, const AttendOptions& options) {
  auto problem = problem_of(run, options);
  problem.wanted = Wanted::output_and_lse;
  problem.merged = true;
  return attend_problem(problem);
}

/// The number of pages with which both sequence n and sequence n + 1 begin; 0 if these are too few
/// to be worth merging.
int64_t common_pages(const PagedRun& run, int64_t n) {
  const auto columns = run.table.size(1);
  const auto* pages = run.table.const_data_ptr<int64_t>() + n * columns;
  const auto* lengths = run.lengths.data() + n;
  // Only pages whose keys all queries see can be shared.
  const auto most = (std::min(lengths[0], lengths[1]) - run.query.size(2)) / page_size(run);
  const auto common = std::mismatch(pages, pages + most, pages + columns).first - pages;
  return common * page_size(run) >= kWorthSharing ? common : 0;
}

/// Neighboring sequences, and the number of pages with which all of them begin.
struct Neighbors {
  int64_t count, pages;
};

std::vector<Neighbors> neighbors_of(const PagedRun& run) {
  std::vector<Neighbors> found;
  bool joins = false;  // whether sequence n joins those before
  for (int64_t n = 0; n < run.count(); ++n) {
    const auto common = n + 1 < run.count() ? common_pages(run, n) : 0;
    if (joins) {
      ++found.back().count;
      if (common > 0) found.back().pages = std::min(found.back().pages, common);
    } else if (common == 0 && !found.empty() && found.back().pages == 0) {
      ++found.back().count;
    } else {
      found.push_back({1, common});
    }
    joins = common > 0;
  }
  return found;
}

PagedRun beginning_of(const PagedRun& run, int64_t pages) {
  // The query is [1, H, N * L, D]: the queries of all sequences.
  return {run.query.transpose(0, 1).flatten(1, 2).unsqueeze(0),
          run.keys,
          run.values,
          run.table.narrow(0, 0, 1).narrow(1, 0, pages),
          {pages * page_size(run)},
          {}};
}

PagedRun rest_of(const PagedRun& run, int64_t pages) {
  auto rest = run;
  rest.table = run.table.narrow(1, pages, run.table.size(1) - pages);
  for (auto& length : rest.lengths) length -= pages * page_size(run);
  return rest;
}

at::Tensor attend_sharing(const PagedRun& run, int64_t pages, const AttendOptions& options) {
  auto before = options;  // all queries see these keys; a sink counts only once
  before.causal(false).sinks(std::nullopt);
  const auto shared = attend_part_of(beginning_of(run, pages), before);
  const auto own = attend_part_of(rest_of(run, pages), options);
  const auto by_sequence = [&](const at::Tensor& rows) {  // [1, H, N * L, ..] to [N, H, L, ..]
    return rows.squeeze(0).unflatten(1, {run.count(), run.query.size(2)}).transpose(0, 1);
  };
  const auto merged = std::get<0>(merge_attention({by_sequence(shared.output), own.output},
                                                  {by_sequence(shared.lse), own.lse}));
  return merged.to(run.query.scalar_type());
}

}  // namespace

PagedRun PagedRun::narrow(int64_t first, int64_t count) const {
  if (count == this->count()) return *this;
  return {query.narrow(0, first, count),
          keys,
          values,
          table.narrow(0, first, count),
          {lengths.begin() + first, lengths.begin() + first + count},
          parents.defined() ? parents.narrow(0, first, count) : parents};
}

at::Tensor attend_run(const PagedRun& run, const AttendOptions& options) {
  // With a window or ALiBi, attention to shared pages depends on the query's position, so
  // sequences of different lengths cannot share them.
  const bool depends = options.window() || options.alibi_slopes();
  std::vector<at::Tensor> outputs;
  int64_t first = 0;
  for (const auto& [count, pages] :
       depends ? std::vector{Neighbors{run.count(), 0}} : neighbors_of(run)) {
    const auto own = run.narrow(first, count);
    outputs.push_back(pages > 0 ? attend_sharing(own, pages, options)
                                : attend_problem(problem_of(own, options)).output);
    first += count;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
}

}  // namespace heed::detail
