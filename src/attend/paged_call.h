// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "attend/shared_pages.h"
#include "core/problem.h"

namespace heed::detail {

/// Some of a call's T tokens.
struct TokenRows {
  int64_t first = 0, count = 0;
  at::Tensor numbers;  // int64 [count] on the device; undefined: [first, first + count)

  /// Takes these rows of a tensor [T, ..].
  at::Tensor of(const at::Tensor& rows) const;
  /// Replaces these rows of a tensor [T, ..].
  void replace(at::Tensor& rows, const at::Tensor& values) const;
};

/// Keys in pages, and tokens that attend to them: those of B sequences with L tokens each.
struct PagedBatch {
  TokenRows tokens;              // B * L of them
  PagedSequences sequences;      // on the device
  std::vector<int64_t> lengths;  // [B]: how many keys each sequence has
  at::Tensor parents;            // int64 [B, L] on the CPU, or undefined: no drafts
  bool is_whole = false;         // whether the tokens have no keys in other batches

  int64_t count() const { return static_cast<int64_t>(lengths.size()); }
};

/// Batches that have no token in common.
struct PagedLevel {
  TokenRows tokens;  // those of all batches, one batch after the other
  std::vector<PagedBatch> batches;
};

/// The sequences of a call of `attend_paged`. They do not depend on the layer, so a step makes them
/// once.
class PagedCall {
 public:
  /// Sequence n has query_lengths[n] tokens and key_lengths[n] keys, in the pages of row n of
  /// `table`: int64 [N, n], contiguous, on the CPU. `parents` are int64 [T], contiguous, on the
  /// CPU, or undefined if there are no drafts. All must have been checked.
  PagedCall(std::vector<int64_t> query_lengths, std::vector<int64_t> key_lengths, at::Tensor table,
            at::Tensor parents, int64_t page_size, at::Device device);

  /// Where the tokens of each sequence begin, and the number of all: [N + 1].
  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t sequences() const { return static_cast<int64_t>(query_lengths_.size()); }
  int64_t tokens() const { return offsets_.back(); }

  /// Splits the keys into levels. Each token is in one batch of the first level and in at most one
  /// of each other level; together they have all of its keys. If `shares`, pages with which several
  /// sequences of few queries begin are the keys of one batch for all of them, after the first
  /// level; if not, there is only the first level. Levels are made when they are first asked for.
  const std::vector<PagedLevel>& levels(bool shares) const;

 private:
  /// A run of a sequence's keys, in pages that begin with the first of them.
  struct KeyRun {
    const int64_t* pages;
    int64_t keys;
  };
  std::vector<PagedLevel> make_levels(bool shares) const;
  /// All keys but those of the first begins[n] pages of each sequence. Neighbors with the same
  /// number of queries are a batch.
  PagedLevel own_keys(const std::vector<int64_t>& begins) const;
  /// The node's keys as those of one sequence, which has the tokens of all of the node.
  PagedBatch shared_keys(const SharedPages& node) const;
  PagedBatch make_batch(TokenRows tokens, const std::vector<KeyRun>& sequences) const;
  TokenRows tokens_of(const std::vector<int64_t>& sequences) const;
  const int64_t* pages(int64_t n) const {
    return table_.const_data_ptr<int64_t>() + n * table_.size(1);
  }

  std::vector<int64_t> query_lengths_, key_lengths_, offsets_;
  at::Tensor table_, parents_;
  int64_t page_size_;
  at::Device device_;
  mutable std::mutex mutex_;
  mutable std::array<std::vector<PagedLevel>, 2> levels_;  // without and with sharing, once asked
};

}  // namespace heed::detail
