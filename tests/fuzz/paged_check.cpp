// SPDX-License-Identifier: BSD-3-Clause
// attend_paged against the float64 reference of each sequence.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <heed/attend_paged.h>
#include <heed/quantize.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "attend_verdict.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/layouts.h"

namespace heed::fuzz {

namespace {

/// A query, pools of pages as `key` and `value`, the lengths of keys, and which pages hold them.
struct PagedCall : Call {
  at::Tensor key_lengths, table;
};

Integers numbers_of(const at::Tensor& tensor) {
  const auto whole = tensor.to(at::kLong).contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

/// Enough keys that sequences which begin alike read them once, in heads that are small enough.
Case paged_sizes(Case c) {
  c.page = 16 * (1 + c.page % 3);
  if (c.shared == 0) return c;
  c.L = 1 + c.L % 3;
  const auto levels = 1 + c.seed / 2 % 2;               // of a tree
  const auto more = c.S % 2 == 0 ? c.S % 40 : c.S % 3;  // often whole pages
  c.S = (levels * 256 / c.page + 2) * c.page + more;
  c.G = std::min<int64_t>(c.G, 2);
  c.H = std::min<int64_t>(c.H, c.G * 2);
  c.D = std::min<int64_t>(c.D, 4);
  c.Dv = std::min<int64_t>(c.Dv, 3);
  return c;
}

int64_t pages_for(const Case& c, int64_t keys) { return (keys + c.page - 1) / c.page; }

/// Each token follows the one before it, or any.
at::Tensor make_parents(const Case& c, const Integers& lengths) {
  Integers parents;
  for (const auto length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      parents.push_back(c.draft == 1 ? i - 1 : at::randint(-1, i, {1}).item<int64_t>());
    }
  }
  if (c.victim == kMask && c.defect >= kLargerDim && !parents.empty()) {
    parents.back() = c.defect == kLargerDim ? static_cast<int64_t>(parents.size()) : -2;
  }
  if (c.victim == kMask && c.defect == kExtraDim) parents.push_back(-1);
  return at::tensor(parents, at::kLong);
}

/// Pages in any order; those that follow the last in use have numbers that are none. A sequence may
/// begin with the pages of one before it.
at::Tensor make_table(const Case& c, const Integers& keys, int64_t pages) {
  const auto columns = pages_for(c, c.S) + c.seed % 2;
  auto table = at::full({static_cast<int64_t>(keys.size()), columns}, -7, at::kLong);
  const auto order = numbers_of(at::randperm(pages, at::kLong));
  size_t next = 0;
  for (int64_t n = 0; n < table.size(0); ++n) {
    const auto in_use = pages_for(c, keys[static_cast<size_t>(n)]);
    for (int64_t i = 0; i < in_use; ++i) table[n][i] = order[next++];
    if (n == 0 || c.shared == 0) continue;
    const auto from = c.shared == 1 ? n - 1 : at::randint(n, {1}).item<int64_t>();
    const auto most = std::min(in_use, pages_for(c, keys[static_cast<size_t>(from)]));
    const auto alike = c.shared == 1 ? most : at::randint(most + 1, {1}).item<int64_t>();
    table[n].narrow(0, 0, alike).copy_(table[from].narrow(0, 0, alike));
  }
  return table;
}

/// Mistakes of the lengths and pages, in calls whose offsets are right.
void spoil_numbers(const Case& c, PagedCall& call) {
  if (c.victim != kOffsets || c.seed % 2 == 0) return;
  if (c.defect == kUndefined) call.table = at::Tensor();
  if (c.defect == kMissingDim) call.key_lengths = call.key_lengths.to(at::kInt);
  if (c.defect == kExtraDim) call.table = call.table.unsqueeze(0);
  if (c.defect == kSparse) call.key_lengths = call.key_lengths.unsqueeze(0);
  if (c.defect == kMeta) call.key_lengths = call.key_lengths.to(at::kMeta);
  if (c.defect < kLargerDim || call.table.numel() == 0) return;
  if (c.defect == kLargerDim) call.key_lengths[0] = -1;
  if (c.defect == kLargerDim + 1) call.key_lengths[0] = call.table.size(1) * c.page + 1;
  if (c.defect == kLargerDim + 2) call.table[0][0] = call.key.size(0);
  if (c.defect == kLargerDim + 3) call.table[0][0] = -1;
}

/// Puts int8 into the place of keys and values.
void quantize(const Case& c, PagedCall& call) {
  at::Tensor key_scales, value_scales;
  for (auto* const heads : {&call.key, &call.value}) {
    if (!is_dense(*heads, 4) || !has_attention_dtype(*heads)) return;
  }
  std::tie(call.key, key_scales) = quantize_int8(call.key);
  std::tie(call.value, value_scales) = quantize_int8(call.value);
  call.key = test::lay_out(call.key, c.key_layout % test::kNegative);
  call.value = test::lay_out(call.value, c.value_layout % test::kNegative);
  if (c.victim == kBias && c.defect >= kLargerDim) key_scales = key_scales.unsqueeze(0);
  if (c.victim == kBias && c.defect == kUndefined) value_scales = at::Tensor();
  call.options.key_scales(key_scales).value_scales(value_scales);
}

/// Fills what no query sees: the ends of last pages, and pages that no sequence has.
void poison(const Case& c, PagedCall& call, const Integers& keys) {
  const auto value = poison_of(c);
  const bool in_place = c.key_layout == 0 && c.value_layout == 0;
  if (!value || !in_place || c.defect != kNoDefect) return;
  if (!is_dense(call.key, 4) || !is_dense(call.value, 4)) return;
  auto unseen = at::ones({call.key.size(0), call.key.size(2)}, at::kBool);
  for (size_t n = 0; n < keys.size(); ++n) {
    for (int64_t first = 0; first < keys[n]; first += c.page) {
      const auto page = call.table[static_cast<int64_t>(n)][first / c.page].item<int64_t>();
      unseen[page].narrow(0, 0, std::min(c.page, keys[n] - first)).fill_(false);
    }
  }
  const auto rows = unseen.unsqueeze(1);  // [P, 1, page]
  const auto fill = [&](at::Tensor& tensor, const at::Tensor& where) {
    if (tensor.numel() > 0) tensor = tensor.detach().masked_fill(where, *value);
  };
  if (auto& scales = call.options.key_scales()) {
    fill(*scales, rows);
    fill(*call.options.value_scales(), rows);
  } else if (at::isFloatingType(call.key.scalar_type()) &&
             at::isFloatingType(call.value.scalar_type())) {
    fill(call.key, rows.unsqueeze(3));
    fill(call.value, rows.unsqueeze(3));
  }
}

PagedCall make_paged_call(const Case& c) {
  const c10::InferenceMode made_there(c.inference >= 2);
  const auto queries = draw_lengths(c, std::min(c.L, c.S));
  auto keys = draw_lengths(c, c.S);
  int64_t tokens = 0, pages = 1;
  for (size_t n = 0; n < keys.size(); ++n) {
    keys[n] = std::max(keys[n], queries[n]);
    tokens += queries[n];
    pages += pages_for(c, keys[n]);
  }
  PagedCall call;
  call.query = make_values(c, kQuery, {tokens, c.H, c.D}, dtype_of(c.dtype), c.query_layout);
  call.key = make_values(c, kKey, {pages, c.G, c.page, c.D}, dtype_of(c.dtype + c.key_dtype),
                         c.key_layout);
  call.value = make_values(c, kValue, {pages, c.G, c.page, c.Dv}, dtype_of(c.dtype + c.value_dtype),
                           c.value_layout);
  call.query_offsets = make_offsets(c, queries, c.seed % 2 == 0);
  call.key_lengths = at::tensor(keys, at::kLong);
  call.table = make_table(c, keys, pages);
  call.options = make_options(c);
  if (c.draft != 0) call.options.parents(make_parents(c, queries));
  if (c.int8 != 0) quantize(c, call);
  poison(c, call, keys);
  spoil_numbers(c, call);
  return call;
}

bool are_numbers(const at::Tensor& tensor, int64_t rank) {
  return is_dense(tensor, rank) && tensor.scalar_type() == at::kLong;
}

bool are_valid_tensors(const PagedCall& call) {
  const auto &query = call.query, &keys = call.key, &values = call.value;
  const auto& options = call.options;
  if (!is_dense(query, 3) || !has_attention_dtype(query)) return false;
  for (const auto& [pages, scales] :
       {std::pair(keys, options.key_scales()), std::pair(values, options.value_scales())}) {
    const bool scaled = options.key_scales() || options.value_scales();
    if (!is_dense(pages, 4)) return false;
    if (!scaled && pages.scalar_type() != query.scalar_type()) return false;
    if (scaled && (!scales || !is_dense(*scales, 3) || pages.scalar_type() != at::kChar ||
                   scales->sizes() != pages.sizes().slice(0, 3))) {
      return false;
    }
    if (at::GradMode::is_enabled() && pages.requires_grad()) return false;
  }
  const auto H = query.size(1), G = keys.size(1), D = query.size(2);
  return keys.sizes().slice(0, 3) == values.sizes().slice(0, 3) && keys.size(3) == D && D >= 1 &&
         G >= 1 && H >= 1 && H % G == 0 && !(at::GradMode::is_enabled() && query.requires_grad());
}

bool are_valid_parents(const PagedCall& call, const Integers& ends) {
  const auto& parents = call.options.parents();
  if (!parents) return true;
  const auto& options = call.options;
  if (options.alibi_slopes() || options.right_window() || options.relative_bias()) return false;
  if (parents->size(0) != ends.back()) return false;
  for (size_t n = 0; n + 1 < ends.size(); ++n) {
    for (auto i = ends[n]; i < ends[n + 1]; ++i) {
      const auto parent = (*parents)[i].item<int64_t>();
      if (parent < -1 || parent >= i - ends[n]) return false;
    }
  }
  return true;
}

bool is_valid_paged(const PagedCall& call) {
  const auto& options = call.options;
  if (!are_valid_tensors(call) || !are_valid_options(options, call.query)) return false;
  if (options.mask() || options.bias() || options.documents() || options.dropout() != 0.0) {
    return false;
  }
  if (options.top_left() || options.query_lengths() || options.key_lengths() ||
      options.global_tokens() || options.relative_positions()) {
    return false;
  }
  for (const auto& tensor : {options.sinks(), options.alibi_slopes(), options.relative_bias()}) {
    if (at::GradMode::is_enabled() && tensor && tensor->requires_grad()) return false;
  }
  if (!are_offsets(call.query_offsets, call.query.size(0)) || !are_numbers(call.table, 2) ||
      !are_numbers(call.key_lengths, 1)) {
    return false;
  }
  const auto ends = numbers_of(call.query_offsets), keys = numbers_of(call.key_lengths);
  const auto sequences = static_cast<int64_t>(ends.size()) - 1;
  if (call.table.size(0) != sequences || call.key_lengths.size(0) != sequences) return false;
  const auto page = call.key.size(2);
  for (int64_t n = 0; n < sequences; ++n) {
    const auto index = static_cast<size_t>(n);
    const auto room = call.table.size(1) * page;
    if (keys[index] < ends[index + 1] - ends[index] || keys[index] > room) return false;
    const auto pages = numbers_of(call.table[n]);
    for (int64_t i = 0; i * page < keys[index]; ++i) {
      const auto number = pages[static_cast<size_t>(i)];
      if (number < 0 || number >= call.key.size(0)) return false;
    }
  }
  return are_valid_parents(call, ends);
}

/// Keys or values of sequence n, [1, G, S, D], in float64 if they are int8.
at::Tensor dense(const PagedCall& call, int64_t n, const at::Tensor& pages,
                 const std::optional<at::Tensor>& scales) {
  const auto S = call.key_lengths[n].item<int64_t>();
  const auto own = call.table[n].narrow(0, 0, (S + pages.size(2) - 1) / pages.size(2));
  const auto gathered = [&](const at::Tensor& pool) {
    return pool.index_select(0, own).transpose(0, 1).flatten(1, 2).narrow(1, 0, S).unsqueeze(0);
  };
  const auto heads = gathered(pages.detach());
  if (!scales) return heads;
  return heads.to(at::kDouble) * gathered(*scales).to(at::kDouble).unsqueeze(3);
}

/// bool [1, 1, L, S]: what drafts see.
at::Tensor seen_by_drafts(const Integers& parents, int64_t S, std::optional<int64_t> window) {
  const auto L = static_cast<int64_t>(parents.size());
  auto seen = at::zeros({L, S}, at::kBool);
  for (int64_t i = 0; i < L; ++i) {
    auto left = window.value_or(std::numeric_limits<int64_t>::max());  // that it may see
    auto j = i;
    for (; j >= 0 && left > 0; j = parents[static_cast<size_t>(j)], --left)
      seen[i][S - L + j] = true;
    for (auto key = S - L - 1; key >= 0 && left > 0; --key, --left) seen[i][key] = true;
  }
  return seen.unsqueeze(0).unsqueeze(0);
}

at::Tensor expected_of(const PagedCall& call) {
  const auto ends = numbers_of(call.query_offsets);
  std::vector<at::Tensor> outputs = {
      at::zeros({0, call.query.size(1), call.value.size(3)}, at::kDouble)};
  for (size_t n = 0; n + 1 < ends.size(); ++n) {
    const auto first = ends[n], L = ends[n + 1] - ends[n];
    const auto sequence = static_cast<int64_t>(n);
    const test::Inputs inputs = {
        call.query.detach().narrow(0, first, L).transpose(0, 1).unsqueeze(0),
        dense(call, sequence, call.key, call.options.key_scales()),
        dense(call, sequence, call.value, call.options.value_scales())};
    auto options = call.options;
    if (const auto& parents = options.parents()) {
      auto window = options.window();
      if (const auto left = options.left_window()) {
        window = std::min(*left, std::numeric_limits<int64_t>::max() - 1) + 1;
      }
      options.mask(
          seen_by_drafts(numbers_of(parents->narrow(0, first, L)), inputs.key.size(2), window));
      options.causal(false).window(std::nullopt).left_window(std::nullopt);
    }
    outputs.push_back(test::dense_reference(inputs, options).output.squeeze(0).transpose(0, 1));
  }
  return at::cat(outputs);
}

}  // namespace

void check_paged(const Case& given) {
  const auto c = paged_sizes(given);
  const auto call = make_paged_call(c);
  const at::AutoGradMode mode(c.inference % 3 == 0);
  const auto output = outcome(is_valid_paged(call), {"attend_paged"}, [&] {
    return attend_paged(call.query, call.key, call.value, call.table, call.query_offsets,
                        call.key_lengths, call.options);
  });
  if (!output) return;
  const auto dtype = call.query.scalar_type();
  expect(output->scalar_type() == dtype, "output's dtype is not query's");
  expect(test::is_finite(*output), "output");
  const auto largest = largest_score(call, c.L + c.S);
  auto allowed = tolerance(dtype, largest);
  // Where int8 keys and values are not read as they are, they are rounded to query's dtype.
  if (call.options.key_scales()) allowed += 2.0 * (1.0 + largest) * test::unit_roundoff(dtype);
  expect(test::is_close(*output, expected_of(call), allowed * (1.0 + std::abs(mean_of(c)))),
         "output");
}

}  // namespace heed::fuzz
