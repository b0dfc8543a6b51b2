#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <heed/attend_paged.h>

#include <algorithm>
#include <vector>

#include "attend/paged_run.h"
#include "core/attend_checks.h"
#include "core/autocast.h"
#include "core/checks.h"
#include "core/direct.h"
#include "core/draft_tree.h"
#include "core/dtypes.h"
#include "core/offsets.h"
#include "core/problem.h"
#include "core/to_device.h"

namespace heed {

namespace {

constexpr auto kAttendPaged = "attend_paged";

struct Pages {
  const at::Tensor &keys, &values;
  at::Tensor table;  // int64 [N, n], contiguous, on the CPU
};

/// The queries of all sequences, and their parents if they are drafts.
struct Tokens {
  at::Tensor query;    // [T, H, D]
  at::Tensor parents;  // int64 [T], contiguous, on the CPU, or undefined

  Tokens narrow(int64_t first, int64_t count) const {
    if (count == query.size(0)) return *this;
    return {query.narrow(0, first, count),
            parents.defined() ? parents.narrow(0, first, count) : parents};
  }
};

/// How many queries and keys each sequence has.
struct Lengths {
  std::vector<int64_t> queries, keys;
};

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
  constexpr auto kWhy = "the lengths say what a query may see";
  HEED_CHECK(!options.mask(), "{}: mask must be absent: {}", kAttendPaged, kWhy);
  HEED_CHECK(!options.documents() && !options.key_documents(), "{}: documents must be absent: {}",
             kAttendPaged, kWhy);
  HEED_CHECK(!options.bias(), "{}: bias must be absent: sequences differ in shape", kAttendPaged);
  if (options.parents()) detail::check_draft_options(kAttendPaged, options);
  detail::check_head_tensors(kAttendPaged, query, options);
  detail::check_score_options(kAttendPaged, options);
  detail::check_precision(kAttendPaged, query.scalar_type(), options);
  HEED_CHECK(options.dropout() == 0.0, "{}: dropout ({}) must be 0: pages are for inference",
             kAttendPaged, options.dropout());
  HEED_CHECK(!options.sinks() || !options.sinks()->requires_grad() || !at::GradMode::is_enabled(),
             "{}: sinks must not require grad: use torch::NoGradGuard", kAttendPaged);
}

void check_numbers(const char* name, const at::Tensor& numbers, int64_t rank, int64_t sequences) {
  detail::check_numbers(kAttendPaged, name, numbers);
  detail::check_rank(kAttendPaged, name, numbers, rank);
  HEED_CHECK(numbers.size(0) == sequences,
             "{}: {} dim 0 ({}) must equal query_offsets dim 0 - 1 ({})", kAttendPaged, name,
             numbers.size(0), sequences);
}

Lengths checked_lengths(const at::Tensor& query, const Pages& pages,
                        const at::Tensor& query_offsets, const at::Tensor& key_lengths) {
  Lengths lengths{
      detail::checked_lengths(kAttendPaged, "query_offsets", query_offsets, query.size(0)),
      detail::to_host(key_lengths)};
  const auto page_size = pages.keys.size(2), count = pages.keys.size(0);
  const auto columns = pages.table.size(1);
  const auto* page = pages.table.const_data_ptr<int64_t>();
  for (size_t n = 0; n < lengths.keys.size(); ++n, page += columns) {
    const auto queries = lengths.queries[n], keys = lengths.keys[n];
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
  return lengths;
}

/// Checks the parents of all tokens, and returns them int64 [T], contiguous, on the CPU.
at::Tensor checked_parents(const at::Tensor& parents, const Lengths& lengths, int64_t tokens) {
  detail::check_numbers(kAttendPaged, "parents", parents);
  HEED_CHECK(parents.sizes() == at::IntArrayRef({tokens}),
             "{}: parents {} must be [{}], one for each query", kAttendPaged,
             detail::shape(parents), tokens);
  const auto own = parents.cpu().contiguous();
  const auto* numbers = own.const_data_ptr<int64_t>();
  int64_t first = 0;
  for (const auto length : lengths.queries) {
    detail::check_parents(kAttendPaged, "parents", first,
                          {numbers + first, static_cast<size_t>(length)});
    first += length;
  }
  return own;
}

/// Views of one query in each sequence: [N, H, D] as [N, H, 1, D], and back.
/// @{
at::Tensor one_query_each(const at::Tensor& rows) {
  return detail::strided_view(rows, {rows.size(0), rows.size(1), 1, rows.size(2)},
                              {rows.stride(0), rows.stride(1), rows.stride(1), rows.stride(2)});
}
at::Tensor without_queries(const at::Tensor& heads) {
  return detail::strided_view(heads, {heads.size(0), heads.size(1), heads.size(3)},
                              {heads.stride(0), heads.stride(1), heads.stride(3)});
}
/// @}

/// Attention of the sequences [first, last), which have the same number of queries. `rows` are
/// their queries.
at::Tensor attend_to_rows(const Tokens& rows, const Pages& pages, const Lengths& lengths,
                          size_t first, size_t last, const AttendOptions& options) {
  const auto count = static_cast<int64_t>(last - first), length = lengths.queries[first];
  const auto begin = lengths.keys.begin() + static_cast<std::ptrdiff_t>(first);
  const bool single = length == 1;  // a single query needs fewer views
  const auto output = detail::attend_run(
      {single ? one_query_each(rows.query)
              : rows.query.unflatten(0, {count, length}).transpose(1, 2),  // [count, H, L, D]
       pages.keys,
       pages.values,
       count == pages.table.size(0) ? pages.table
                                    : pages.table.narrow(0, static_cast<int64_t>(first), count),
       {begin, begin + count},
       rows.parents.defined() ? rows.parents.view({count, length}) : at::Tensor()},
      options);
  return single ? without_queries(output)
                : output.transpose(1, 2).flatten(0, 1);  // [count * L, H, Dv]
}

}  // namespace

at::Tensor attend_paged(const at::Tensor& query, const at::Tensor& key_pages,
                        const at::Tensor& value_pages, const at::Tensor& page_table,
                        const at::Tensor& query_offsets, const at::Tensor& key_lengths,
                        const AttendOptions& options) {
  detail::check_defined(kAttendPaged, "query", query);
  detail::check_defined(kAttendPaged, "key_pages", key_pages);
  if (detail::is_autocast(query)) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    detail::check_floating(kAttendPaged, "query", query);
    const auto dtype = key_pages.scalar_type();
    const bool casts = !detail::has_scales(options) && detail::is_attention_dtype(dtype);
    return attend_paged(casts ? query.to(dtype) : query, key_pages, value_pages, page_table,
                        query_offsets, key_lengths, options);
  }
  check_tensors(query, key_pages, value_pages, options);
  check_options(query, options);
  detail::check_offsets_shape(kAttendPaged, "query_offsets", query_offsets);
  const auto sequences = query_offsets.size(0) - 1;
  check_numbers("page_table", page_table, 2, sequences);
  check_numbers("key_lengths", key_lengths, 1, sequences);
  const Pages pages{key_pages, value_pages, detail::to_device(page_table, at::kCPU).contiguous()};
  const auto lengths = checked_lengths(query, pages, query_offsets, key_lengths);
  Tokens tokens{query, {}};
  if (options.parents()) {
    tokens.parents = checked_parents(*options.parents(), lengths, query.size(0));
  }

  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (size_t first = 0, last; first < lengths.queries.size(); first = last) {
    const auto length = lengths.queries[first];
    const auto differs = [length](int64_t other) { return other != length; };
    last = static_cast<size_t>(
        std::find_if(lengths.queries.begin() + static_cast<std::ptrdiff_t>(first),
                     lengths.queries.end(), differs) -
        lengths.queries.begin());
    const auto rows = static_cast<int64_t>(last - first) * length;
    if (rows == 0) continue;
    outputs.push_back(
        attend_to_rows(tokens.narrow(row, rows), pages, lengths, first, last, options));
    row += rows;
  }
  if (outputs.size() == 1) return outputs.front();
  if (outputs.empty()) {
    return at::empty({0, query.size(1), value_pages.size(3)}, query.options());
  }
  return at::cat(outputs);
}

}  // namespace heed
