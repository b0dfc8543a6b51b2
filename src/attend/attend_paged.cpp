// SPDX-License-Identifier: BSD-3-Clause
#include "attend/attend_paged.h"

#include <ATen/core/grad_mode.h>
#include <heed/attend_paged.h>

#include <utility>
#include <vector>

#include "attend/attend_levels.h"
#include "core/attend_checks.h"
#include "core/autocast.h"
#include "core/checks.h"
#include "core/draft_tree.h"
#include "core/dtypes.h"
#include "core/offsets.h"
#include "core/problem.h"
#include "core/to_device.h"

namespace heed {

namespace {

constexpr auto kAttendPaged = "attend_paged";

void check_tensors(const at::Tensor& query, const at::Tensor& key_pages,
                   const at::Tensor& value_pages, const AttendOptions& options) {
  const bool scaled = detail::has_scales(options);
  const auto check = [&](const char* name, const at::Tensor& tensor, int64_t rank) {
    detail::check_defined(kAttendPaged, name, tensor);
    detail::check_rank(kAttendPaged, name, tensor, rank);
    if (!scaled) detail::check_same_dtype(kAttendPaged, name, tensor, "query", query);
    detail::check_same_device(kAttendPaged, name, tensor, "query", query);
    HEED_CHECK(!(at::GradMode::is_enabled() && tensor.requires_grad()),
               "{}: {} must not require grad: pages hold no gradients; use torch::NoGradGuard",
               kAttendPaged, name);
  };
  detail::check_defined(kAttendPaged, "query", query);
  detail::check_floating(kAttendPaged, "query", query);
  check("query", query, 3);
  check("key_pages", key_pages, 4);
  check("value_pages", value_pages, 4);
  if (scaled) {
    detail::check_scales(kAttendPaged, "key", "key_pages", key_pages, options.key_scales());
    detail::check_scales(kAttendPaged, "value", "value_pages", value_pages, options.value_scales());
  }
  for (const int64_t dim : {0, 1, 2}) {
    detail::check_same_dim(kAttendPaged, "value_pages", value_pages, "key_pages", key_pages, dim);
  }
  HEED_CHECK(key_pages.size(3) == query.size(2) && query.size(2) >= 1,
             "{}: key_pages dim 3 ({}) must equal query dim 2 ({}) and be at least 1; query {}, "
             "key_pages {}",
             kAttendPaged, key_pages.size(3), query.size(2), detail::shape(query),
             detail::shape(key_pages));
  const auto groups = key_pages.size(1), page_size = key_pages.size(2);
  HEED_CHECK(groups >= 1 && query.size(1) >= 1 && query.size(1) % groups == 0,
             "{}: query dim 1 ({}) must be a positive multiple of key_pages dim 1 ({}); query {}, "
             "key_pages {}",
             kAttendPaged, query.size(1), groups, detail::shape(query), detail::shape(key_pages));
  HEED_CHECK(page_size >= 1 && page_size % detail::kPageMultiple == 0,
             "{}: key_pages dim 2 ({}) must be a positive multiple of {}; key_pages {}",
             kAttendPaged, page_size, detail::kPageMultiple, detail::shape(key_pages));
}

void check_options(const at::Tensor& query, const AttendOptions& options) {
  detail::check_no_scores(kAttendPaged, "the lengths say what a query may see", options);
  HEED_CHECK(!options.top_left(), "{}: top_left must be absent: the last query is at the last key",
             kAttendPaged);
  if (options.parents()) detail::check_draft_options(kAttendPaged, options);
  detail::check_head_tensors(kAttendPaged, query, options);
  detail::check_score_options(kAttendPaged, options);
  detail::check_precision(kAttendPaged, query.scalar_type(), options);
  HEED_CHECK(options.dropout() == 0.0, "{}: dropout ({}) must be 0: pages are for inference",
             kAttendPaged, options.dropout());
  const auto check_grad = [](const char* name, const std::optional<at::Tensor>& tensor) {
    HEED_CHECK(!tensor || !tensor->requires_grad() || !at::GradMode::is_enabled(),
               "{}: {} must not require grad: use torch::NoGradGuard", kAttendPaged, name);
  };
  check_grad("sinks", options.sinks());
  check_grad("alibi_slopes", options.alibi_slopes());
  check_grad("relative_bias", options.relative_bias());
}

void check_numbers(const char* name, const at::Tensor& numbers, int64_t rank, int64_t sequences) {
  detail::check_numbers(kAttendPaged, name, numbers);
  detail::check_rank(kAttendPaged, name, numbers, rank);
  HEED_CHECK(numbers.size(0) == sequences,
             "{}: {} dim 0 ({}) must equal query_offsets dim 0 - 1 ({})", kAttendPaged, name,
             numbers.size(0), sequences);
}

/// Checks all but the sequences. Returns the query; under autocast, in the dtype of the pages.
at::Tensor checked_query(const at::Tensor& query, const at::Tensor& key_pages,
                         const at::Tensor& value_pages, const AttendOptions& options) {
  detail::check_defined(kAttendPaged, "query", query);
  detail::check_defined(kAttendPaged, "key_pages", key_pages);
  auto own = query;
  if (detail::is_autocast(query)) {
    detail::check_floating(kAttendPaged, "query", query);
    const auto dtype = key_pages.scalar_type();
    const bool casts = !detail::has_scales(options) && detail::is_attention_dtype(dtype);
    if (casts) own = query.to(dtype);
  }
  check_tensors(own, key_pages, value_pages, options);
  check_options(own, options);
  return own;
}

/// Checks how many keys each sequence has, and the pages in which they lie.
void check_keys(const std::vector<int64_t>& query_lengths, const std::vector<int64_t>& key_lengths,
                const at::Tensor& table, const at::Tensor& key_pages) {
  const auto page_size = key_pages.size(2), count = key_pages.size(0), columns = table.size(1);
  const auto* page = table.const_data_ptr<int64_t>();
  for (size_t n = 0; n < key_lengths.size(); ++n, page += columns) {
    const auto queries = query_lengths[n], keys = key_lengths[n];
    HEED_CHECK(keys >= queries && keys <= columns * page_size,
               "{}: key_lengths[{}] ({}) must be at least its queries ({}) and at most the keys of "
               "{} pages ({})",
               kAttendPaged, n, keys, queries, columns, columns * page_size);
    for (int64_t i = 0; i * page_size < keys; ++i) {
      HEED_CHECK(page[i] >= 0 && page[i] < count,
                 "{}: page_table[{}][{}] ({}) must be at least 0 and below key_pages dim 0 ({})",
                 kAttendPaged, n, i, page[i], count);
    }
  }
}

/// Checks the parents of all tokens, and returns them int64 [T], contiguous, on the CPU.
at::Tensor checked_parents(const at::Tensor& parents, const std::vector<int64_t>& query_lengths,
                           int64_t tokens) {
  detail::check_numbers(kAttendPaged, "parents", parents);
  HEED_CHECK(parents.sizes() == at::IntArrayRef({tokens}),
             "{}: parents {} must be [{}], one for each query", kAttendPaged,
             detail::shape(parents), tokens);
  const auto own = parents.cpu().contiguous();
  detail::check_trees(kAttendPaged, query_lengths,
                      {own.const_data_ptr<int64_t>(), static_cast<size_t>(tokens)});
  return own;
}

/// Attention of a call whose arguments have all been checked.
at::Tensor attend_checked(const detail::PagedTensors& tensors, const detail::PagedCall& call,
                          const AttendOptions& options) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return detail::attend_levels(tensors, call, options);
}

}  // namespace

at::Tensor attend_paged(const at::Tensor& query, const at::Tensor& key_pages,
                        const at::Tensor& value_pages, const at::Tensor& page_table,
                        const at::Tensor& query_offsets, const at::Tensor& key_lengths,
                        const AttendOptions& options) {
  const auto own = checked_query(query, key_pages, value_pages, options);
  detail::check_offsets_shape(kAttendPaged, "query_offsets", query_offsets);
  const auto sequences = query_offsets.size(0) - 1;
  check_numbers("page_table", page_table, 2, sequences);
  check_numbers("key_lengths", key_lengths, 1, sequences);
  const auto table = detail::to_device(page_table, at::kCPU).contiguous();
  auto queries = detail::checked_lengths(kAttendPaged, "query_offsets", query_offsets, own.size(0));
  auto keys = detail::to_host(key_lengths);
  check_keys(queries, keys, table, key_pages);
  const auto parents =
      options.parents() ? checked_parents(*options.parents(), queries, own.size(0)) : at::Tensor();
  const detail::PagedCall call(std::move(queries), std::move(keys), table, parents,
                               key_pages.size(2), own.device());
  return attend_checked({own, key_pages, value_pages}, call, options);
}

at::Tensor detail::attend_paged(const at::Tensor& query, const at::Tensor& key_pages,
                                const at::Tensor& value_pages, const PagedCall& call,
                                const AttendOptions& options) {
  const auto own = checked_query(query, key_pages, value_pages, options);
  HEED_CHECK(own.size(0) == call.tokens(),
             "{}: query_offsets[{}] ({}) must equal the packed length ({})", kAttendPaged,
             call.sequences(), call.tokens(), own.size(0));
  return attend_checked({own, key_pages, value_pages}, call, options);
}

}  // namespace heed
