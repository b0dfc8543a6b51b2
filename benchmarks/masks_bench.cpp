// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/any.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <heed/block_mask.h>
#include <heed/masks.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "attend_calls.h"
#include "rows.h"
#include "support/limits.h"

namespace heed::bench {

namespace {

/// A masked call of ours and its peer, with the same queries, keys and values.
struct MaskInputs {
  AttendCall ours, peer;
  at::Tensor mask;  // what ours hides beside causal, for SDPA
};

at::Tensor masked_heed(MaskInputs& in) { return run_call(in.ours); }
at::Tensor masked_peer(MaskInputs& in) { return run_call(in.peer); }
at::Tensor masked_sdpa(MaskInputs& in) {
  const auto& query = in.ours.query;
  const auto& key = in.ours.key;
  return finish_call(in.ours, at::scaled_dot_product_attention(
                                  query, key, in.ours.value, in.mask, /*dropout_p=*/0.0,
                                  /*is_causal=*/false, /*scale=*/std::nullopt,
                                  /*enable_gqa=*/query.size(1) != key.size(1)));
}

/// The share of the kernel's cells, so many queries of so many keys, in which some key is seen. For
/// a mask [.., L or 1, S].
double seen_share(const at::Tensor& mask) {
  constexpr int64_t kKeys = 16;
  const int64_t queries = mask.size(-2) == 1 ? 1 : 16;
  const auto missing = [&](int64_t dim, int64_t cell) {
    return (cell - mask.size(dim) % cell) % cell;
  };
  return at::constant_pad_nd(mask, {0, missing(-1, kKeys), 0, missing(-2, queries)}, false)
      .unflatten(-1, {-1, kKeys})
      .any(-1)
      .unflatten(-2, {-1, queries})
      .any(-2)
      .to(at::kDouble)
      .mean()
      .item<double>();
}

constexpr int64_t kDocuments = 16;

/// [1, H, documents * L, D] to [documents, H, L, D], in the same memory.
at::Tensor as_batch(const at::Tensor& sequence) {
  return sequence.detach()
      .squeeze(0)
      .unflatten(1, {kDocuments, -1})
      .transpose(0, 1)
      .requires_grad_(sequence.requires_grad());
}

at::Tensor as_sequence(const at::Tensor& batch) {
  return batch.transpose(0, 1).flatten(1, 2).unsqueeze(0);
}

/// Documents in one sequence, beside the same as a batch.
void add_document_row(Rows& rows, bool by_ids, bool causal, bool training) {
  const CallShape s{1, 8, 8, 8192, 8192, 64};
  const auto make = [=] {
    const auto ids = at::arange(s.L).div(s.L / kDocuments, "floor");
    MaskInputs in{make_call(s, training), {}, {}};
    in.peer = {as_batch(in.ours.query), as_batch(in.ours.key), as_batch(in.ours.value),
               as_batch(in.ours.output_gradient), AttendOptions().causal(causal)};
    in.mask = document_mask(ids);
    in.ours.options.causal(causal);
    by_ids ? in.ours.options.documents(ids) : in.ours.options.mask(in.mask);
    if (causal) in.mask = in.mask.tril();
    return in;
  };
  std::vector<Contestant<MaskInputs>> contestants = {
      {"heed", masked_heed}, {"the same as a batch", masked_peer, 1.0 / 1.25, as_sequence}};
  const bool with_sdpa = !by_ids && !causal && !training;  // it takes more than a second
  if (with_sdpa) contestants.push_back({"SDPA", masked_sdpa});
  RowTraits traits;
  traits.training = training;
  add_row<MaskInputs>(
      rows,
      call_name(fmt::format("documents/{}{}", by_ids ? "ids" : "mask", causal ? "_causal" : ""), s,
                training),
      traits, make, contestants);
}

/// A mask beside none. `target` is of the time that the tiles with seen keys would take.
void add_masked_row(Rows& rows, const std::string& name, const CallShape& s, bool training,
                    const std::function<at::Tensor()>& make_mask, double target) {
  const auto make = [=] {
    MaskInputs in{make_call(s, training), {}, make_mask()};
    in.peer = in.ours;
    in.ours.options.mask(in.mask);
    return in;
  };
  const auto share = [](const MaskInputs& in) { return seen_share(in.mask); };
  RowTraits traits;
  traits.training = training;
  add_row<MaskInputs>(rows, call_name(name, s, training), traits, make,
                      {{"heed", masked_heed},
                       {"no mask", masked_peer, target, no_result, /*may_refuse=*/false, share},
                       {"SDPA", masked_sdpa}});
}

/// [L, L] of blocks. A block of queries sees the first block of keys, its own and those beside it,
/// and random ones, up to a quarter of all. Zaheer et al. 2020 (arXiv:2007.14062).
at::Tensor block_sparse_mask(int64_t length, int64_t block) {
  const auto blocks = length / block;
  auto seen = at::zeros({blocks, blocks}, at::kBool);
  std::mt19937 generator;  // default seed: the same mask in every run
  std::vector<int64_t> others(static_cast<size_t>(blocks));
  std::iota(others.begin(), others.end(), 0);
  for (int64_t i = 0; i < blocks; ++i) {
    auto row = seen[i];
    row[0] = true;
    row.slice(0, std::max<int64_t>(0, i - 1), i + 2).fill_(true);
    std::shuffle(others.begin(), others.end(), generator);
    for (size_t n = 0; row.sum().item<int64_t>() < blocks / 4; ++n) row[others[n]] = true;
  }
  return seen.repeat_interleave(block, 0).repeat_interleave(block, 1);
}

/// [L, L]: by how many positions a query is behind a key.
at::Tensor distances(int64_t length) {
  return at::arange(length).unsqueeze(1) - at::arange(length);
}

/// The last `stride` keys, and before them every stride-th. Child et al. 2019 (arXiv:1904.10509).
at::Tensor strided_mask(int64_t length, int64_t stride) {
  const auto behind = distances(length);
  return (behind >= 0).logical_and((behind < stride).logical_or(behind.remainder(stride) == 0));
}

at::Tensor prefix_mask(int64_t length, int64_t prefix) {
  return causal_mask(length, length).logical_or(at::arange(length) < prefix);
}

/// Every second key up to `reach` away. Beltagy et al. 2020 (arXiv:2004.05150).
at::Tensor dilated_mask(int64_t length, int64_t reach) {
  const auto behind = distances(length);
  return (behind.abs() <= reach).logical_and(behind.remainder(2) == 0);
}

/// A mask by a rule beside the same as a tensor.
template <typename Rule>
void add_rule_row(Rows& rows, const std::string& name, bool training, const Rule& rule) {
  const CallShape s{1, 8, 8, 8192, 8192, 64};
  const auto make = [=] {
    MaskInputs in{make_call(s, training), {}, {}};
    in.peer = in.ours;
    const BlockMask mask = make_block_mask(/*batch=*/1, /*heads=*/1, s.L, s.S, rule);
    in.ours.options.block_mask(mask);
    in.peer.options.mask(mask.mask());
    return in;
  };
  RowTraits traits;
  traits.training = training;
  add_row<MaskInputs>(rows, call_name("rules/" + name, s, training), traits, make,
                      {{"heed", masked_heed}, {"the same as a tensor", masked_peer, 1.0 / 1.03}});
}

void add_rule_rows(Rows& rows) {
  for (const bool training : {false, true}) {
    add_rule_row(rows, "strided128", training,
                 [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) {
                   return j <= i && (i - j < 128 || (i - j) % 128 == 0);
                 });
    add_rule_row(
        rows, "prefix512", training,
        [](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) { return j <= i || j < 512; });
  }
}

void add_sparse_rows(Rows& rows) {
  constexpr int64_t kLength = 2048;
  const CallShape s{1, 8, 8, kLength, kLength, 64};
  const double in_proportion = 1.0 / 1.25;
  for (const bool training : {false, true}) {
    const auto add = [&](const char* name, const std::function<at::Tensor()>& mask, double target) {
      add_masked_row(rows, std::string("masks/") + name, s, training, mask, target);
    };
    add(
        "all_seen",
        [] {
          return at::ones({kLength, kLength}, at::kBool);
        },
        1.0 / 1.03);
    add(
        "blocks64", [] { return block_sparse_mask(kLength, 64); }, in_proportion);
    add(
        "blocks128", [] { return block_sparse_mask(kLength, 128); }, in_proportion);
    add(
        "strided128", [] { return strided_mask(kLength, 128); }, in_proportion);
    add(
        "prefix512", [] { return prefix_mask(kLength, 512); }, in_proportion);
    add(
        "dilated256", [] { return dilated_mask(kLength, 256); }, in_proportion);
  }
}

/// [B, 1, 1, S]: lengths from `shortest` to S, evenly apart.
at::Tensor even_padding(int64_t batch, int64_t shortest, int64_t S) {
  return padding_mask(at::linspace(shortest, S, batch).to(at::kLong), S);
}

void add_padding_rows(Rows& rows) {
  const CallShape prefill{16, 8, 8, 1024, 1024, 64};
  const CallShape decoding{8, 32, 8, 1, 4096, 128};
  for (const bool training : {false, true}) {
    add_masked_row(
        rows, "padding/lengths64to1024", prefill, training,
        [] { return even_padding(16, 64, 1024); }, 1.0 / 1.1);
    add_masked_row(
        rows, "padding/all_seen", prefill, training, [] { return even_padding(16, 1024, 1024); },
        1.0 / 1.03);
  }
  add_masked_row(
      rows, "padding/decoding_lengths512to4096", decoding, /*training=*/false,
      [] { return even_padding(8, 512, 4096); }, 1.0 / 1.1);
}

}  // namespace

void add_mask_rows(Rows& rows) {
  for (const bool training : {false, true}) {
    for (const bool causal : {false, true}) {
      for (const bool by_ids : {false, true}) add_document_row(rows, by_ids, causal, training);
    }
  }
  add_padding_rows(rows);
  add_sparse_rows(rows);
  add_rule_rows(rows);
}

}  // namespace heed::bench
