// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>

#include "rows.h"

namespace heed::bench {

namespace {

constexpr int64_t kQueryHeads = 32, kKeyHeads = 8, kHeadDim = 128, kPage = 64;

/// N sequences of S keys and L queries each. The first `shared` keys are the same in all, or, with
/// several branches, in those of a branch: a tree whose trunk is the first kTrunk keys.
struct PagedShape {
  int64_t N, L, S, shared = 0, branches = 1;
};

constexpr int64_t kTrunk = 256;

struct PagedInputs {
  at::Tensor query;                   // [N * L, H, D]
  at::Tensor key_pages, value_pages;  // [P, G, page, D]
  at::Tensor table, own_pages;        // [N, S / page]: shared pages shared, and copied for each
  at::Tensor query_offsets, lengths;
  at::Tensor batch, key, value;  // the same as attend takes it
};

PagedInputs make_inputs(const PagedShape& s, at::ScalarType dtype) {
  const auto columns = s.S / kPage, shared = s.shared / kPage;
  const auto pages = s.N * columns;
  const auto trunk = s.branches > 1 ? kTrunk / kPage : shared;
  PagedInputs in;
  in.query = at::randn({s.N * s.L, kQueryHeads, kHeadDim}).to(dtype);
  in.key_pages = at::randn({pages, kKeyHeads, kPage, kHeadDim}).to(dtype);
  in.value_pages = at::randn({pages, kKeyHeads, kPage, kHeadDim}).to(dtype);
  in.own_pages = at::randperm(pages, at::kLong).view({s.N, columns});
  in.table = in.own_pages.clone();
  for (int64_t n = 1; n < s.N; ++n) {
    const auto branch = n - n % (s.N / s.branches);  // its first sequence
    in.table[n].narrow(0, 0, shared).copy_(in.table[branch].narrow(0, 0, shared));
    in.table[n].narrow(0, 0, trunk).copy_(in.table[0].narrow(0, 0, trunk));
    for (auto* pool : {&in.key_pages, &in.value_pages}) {
      pool->index_copy_(0, in.own_pages[n], pool->index_select(0, in.table[n]));
    }
  }
  in.query_offsets = at::arange(0, s.N * s.L + 1, s.L, at::kLong);
  in.lengths = at::full({s.N}, s.S, at::kLong);
  const auto together = [&](const at::Tensor& pool) {
    return pool.index_select(0, in.own_pages.flatten())
        .unflatten(0, {s.N, columns})
        .transpose(1, 2)
        .flatten(2, 3);
  };
  in.batch = in.query.unflatten(0, {s.N, s.L}).transpose(1, 2);
  in.key = together(in.key_pages);
  in.value = together(in.value_pages);
  return in;
}

at::Tensor attend_to(const PagedInputs& in, const at::Tensor& table) {
  return attend_paged(in.query, in.key_pages, in.value_pages, table, in.query_offsets, in.lengths,
                      AttendOptions().causal(true));
}

at::Tensor pages(PagedInputs& in) { return attend_to(in, in.table); }
at::Tensor copied_pages(PagedInputs& in) { return attend_to(in, in.own_pages); }
at::Tensor one_block(PagedInputs& in) {
  return attend(in.batch, in.key, in.value, AttendOptions().causal(true))
      .transpose(1, 2)
      .flatten(0, 1);
}
at::Tensor as_it_is(const at::Tensor& output) { return output; }

void add_rows(Rows& rows, const PagedShape& s, at::ScalarType dtype, double target) {
  RowTraits traits;
  traits.flops = 4.0 * static_cast<double>(s.N * kQueryHeads * s.L * s.S * kHeadDim);
  const auto name = fmt::format("paged/{}/N{}_L{}_S{}{}{}", c10::toString(dtype), s.N, s.L, s.S,
                                s.shared > 0 ? fmt::format("_shared{}", s.shared) : "",
                                s.branches > 1 ? fmt::format("_branches{}", s.branches) : "");
  std::vector<Contestant<PagedInputs>> contestants = {{"heed", pages}};
  if (s.shared > 0) {
    contestants.push_back({"copies of what is shared", copied_pages, target, as_it_is});
  } else {
    contestants.push_back({"a block for each sequence", one_block, target, as_it_is});
  }
  add_row<PagedInputs>(
      rows, name, traits, [s, dtype] { return make_inputs(s, dtype); }, contestants);
}

}  // namespace

void add_paged_rows(Rows& rows) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    add_rows(rows, {16, 1, 1024}, dtype, 0.95);
    add_rows(rows, {1, 1, 16384}, dtype, 0.95);
    add_rows(rows, {1, 64, 4096}, dtype, 0.95);
    add_rows(rows, {16, 1, 4096 + 128, 4096}, dtype, 4.0);
    add_rows(rows, {16, 1, 4096 + 128, 4096, 4}, dtype, 1.5);
  }
}

}  // namespace heed::bench
