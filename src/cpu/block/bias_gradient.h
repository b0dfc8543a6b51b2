// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/block/backward_pass.h"

/// The gradient of a bias, block by block of the bias:
///
///   for each block (batch, head, queries, keys) of the bias, in parallel:
///     sums = 0
///     for each tile of scores that shares the block, in a fixed order:
///       compute the gradients of the tile's scores again       # two products, backward_pass.h
///       sums += gradients              # the sum of their rows if all queries share the bias
///     write sums
///
///   bias [B or 1, H or 1, L or 1, S]: a dimension of size 1 is shared by all tiles along it
///
/// The products bound it, as in the rest of the backward pass. docs/kernels.md, Block ("Memory").

namespace heed::detail {

/// The gradient of a bias that heads, queries or batches may share. Each task sums one block of it
/// over all tiles that share this block, in a fixed order, and computes these tiles once more.
template <typename T>
class BiasGradient {
 public:
  BiasGradient(const BackwardPass& pass, const at::Tensor& gradient)
      : pass_(of_bias(pass)),
        gradient_(gradient),
        block_queries_(std::min(pass.layout.block_rows(), pass.problem().query_length())),
        query_blocks_(gradient.size(2) == 1 ? 1 : ceil_div(gradient.size(2), block_queries_)) {}

  void run() const {
    const auto& problem = pass_.problem();
    const auto key_blocks = pass_.layout.key_blocks();
    const auto tasks = gradient_.size(0) * gradient_.size(1) * query_blocks_ * key_blocks;
    const auto cost = multiply_adds(problem, problem.head_dim() + problem.value_head_dim());
    run_tasks(tasks, useful_threads(cost), [&](TaskQueue& queue) {
      BackwardScratch<T, T> scratch(pass_.layout);
      const Buffer<T> sums(block_queries_ * pass_.layout.tile_stride());
      for (int64_t task = 0; queue.next(task);) {
        const auto keys = pass_.layout.key_block(task % key_blocks);
        const auto rest = task / key_blocks;
        const auto query_block = rest % query_blocks_;
        const auto head = rest / query_blocks_ % gradient_.size(1);
        const auto batch = rest / query_blocks_ / gradient_.size(1);
        sum_block(batch, head, query_block, keys, sums.data(), scratch);
      }
    });
  }

 private:
  void sum_block(int64_t bias_batch, int64_t bias_head, int64_t query_block, KeyRange keys, T* sums,
                 BackwardScratch<T, T>& scratch) const {
    const auto& problem = pass_.problem();
    const bool each_query = gradient_.size(2) > 1;
    const auto first = each_query ? query_block * block_queries_ : 0;
    const auto last = each_query ? std::min(first + block_queries_, problem.query_length())
                                 : problem.query_length();
    const auto sum_rows = each_query ? last - first : 1;
    const auto width = keys.last - keys.first;
    std::fill_n(sums, sum_rows * width, T{0});
    const auto heads =
        gradient_.size(1) == 1 ? KeyRange{0, problem.heads()} : KeyRange{bias_head, bias_head + 1};
    for (int64_t batch = 0; batch < problem.batch(); ++batch) {
      if (problem.score_batch(gradient_, batch) != bias_batch) continue;
      int64_t packed_group = -1;
      for (auto head = heads.first; head < heads.last; ++head) {
        const auto group = head / pass_.layout.heads_per_group();
        if (group != packed_group) pack_keys(pass_, batch, group, keys, scratch);
        packed_group = group;
        for (auto query = first; query < last; query += block_queries_) {
          const auto queries = std::min(block_queries_, last - query);
          add_tile({batch, group, head, 1, query, queries}, keys, each_query, sums, scratch);
        }
      }
    }
    auto rows = tensor_rows(gradient_, bias_batch, bias_head, first, sum_rows);
    rows.data = static_cast<char*>(rows.data) + keys.first * gradient_.element_size();
    rows.columns = width;
    matrix_kernels_of<T>().unpack(sums, width, 1, nullptr, rows);
  }

  void add_tile(const RowBlock& block, KeyRange keys, bool each_query, T* sums,
                BackwardScratch<T, T>& scratch) const {
    if (!pass_.layout.may_see(block, keys)) return;
    scratch.tile.set_rows(block);
    if (!scratch.tile.set_keys(keys)) return;
    tile_gradients(pass_, tile_rows(pass_, block, scratch), scratch);
    const auto width = keys.last - keys.first;
    for (int64_t r = 0; r < block.queries; ++r) {
      matrix_kernels_of<T>().add(scratch.gradients.data() + r * pass_.layout.tile_stride(), width,
                                 each_query ? sums + r * width : sums);
    }
  }

  /// The pass for a bias: the gradients are those of scores after the softcap, to which the bias
  /// is added, and hidden scores have gradients of 0, because whole tiles are summed.
  static BackwardPass of_bias(BackwardPass pass) {
    pass.format.through_softcap = false;
    pass.format.sums_distances = false;
    pass.format.clears_all = true;
    return pass;
  }

  const BackwardPass pass_;
  const at::Tensor& gradient_;  // shaped as the bias, contiguous
  int64_t block_queries_, query_blocks_;
};

}  // namespace heed::detail
