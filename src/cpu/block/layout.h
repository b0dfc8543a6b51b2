// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/ceil_div.h"
#include "cpu/block/block.h"
#include "cpu/block/relative_table.h"
#include "cpu/capability.h"
#include "cpu/key_pages.h"
#include "cpu/shown_keys.h"
#include "cpu/tensor_rows.h"
#include "cpu/threads.h"

/// How the forward and backward passes over blocks split a problem, and how they pack operands:
///
///                        blocks of keys
///                      +------+------+------+
///   blocks of queries  | tile | tile | tile |     forward: a task is one or more rows of tiles
///   of one group       | tile | tile | tile |     backward: a task is a column of tiles
///                      +------+------+------+
///
///   block of queries   queries of one head, or all queries of several heads of the group
///   tile               256 queries x 512 keys at most; all keys if weights are returned
///
/// docs/kernels.md, Block ("Work is split evenly").

namespace heed::detail {

template <typename Operand>
const auto& matrix_kernels_of() {
  if constexpr (std::is_same_v<Operand, double>)
    return instruction_set().matrix.of_double;
  else if constexpr (std::is_same_v<Operand, BFloat16Pair>)
    return instruction_set().matrix.of_pairs;
  else
    return instruction_set().matrix.of_float;
}

template <typename T>
const ScoreKernelsOf<T>& score_kernels_of() {
  if constexpr (std::is_same_v<T, double>)
    return instruction_set().scores.of_double;
  else
    return instruction_set().scores.of_float;
}

inline int64_t padded(int64_t columns) { return round_up(columns, kColumnMultiple); }

/// How many operands a product has along a depth of so many numbers.
template <typename Operand>
int64_t operands(int64_t depth) {
  return ceil_div(depth, kDepthOf<Operand>);
}

/// Uninitialized memory.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : memory_(c10::GetCPUAllocator()->allocate(static_cast<size_t>(size) * sizeof(T))) {}
  T* data() const { return static_cast<T*>(memory_.get()); }

 private:
  c10::DataPtr memory_;
};

/// Queries [first_query, first_query + queries) of the heads [first_head, first_head + heads), all
/// of one group. A block of several heads has all of their queries, so that its rows h * L + i are
/// consecutive.
struct RowBlock {
  int64_t batch, group;
  int64_t first_head, heads;
  int64_t first_query, queries;
  int64_t rows() const { return heads * queries; }
};

/// The pass that a layout is for.
enum class LayoutUse {
  forward,     ///< a task is a block of queries
  whole_rows,  ///< a task is a block of fewer queries, and all keys are one block
  backward,    ///< a task is a group and a block of keys
};

/// How a problem is split into blocks of queries and blocks of keys. Tasks are made of blocks of
/// queries in the forward pass and of keys in the backward pass. The size of these blocks depends
/// on the number of threads, but no result depends on it. The size of the others depends only on
/// the problem.
class BlockLayout {
 public:
  BlockLayout(const Problem& problem, LayoutUse use, int64_t threads = at::get_num_threads());

  const Problem& problem() const { return problem_; }
  /// How many threads the tasks keep busy; more threads would not finish them sooner.
  int64_t threads() const { return threads_; }
  const ShownKeys& shown_keys() const { return shown_keys_; }
  const RelativeTable& relative() const { return relative_; }
  /// Whether mask or documents hide anything.
  bool hides() const { return shown_keys_.hides(); }
  int64_t heads_per_group() const { return problem_.heads() / problem_.groups(); }
  int64_t blocks_per_group() const { return blocks_per_group_; }
  int64_t block_rows() const { return block_heads_ * block_queries_; }
  int64_t block_keys() const { return block_keys_; }
  int64_t key_blocks() const { return ceil_div(problem_.key_length(), block_keys_); }
  /// The distance between the rows of a tile. It is not a power of two, because rows would then
  /// share cache lines.
  int64_t tile_stride() const { return padded(block_keys_) + kColumnMultiple; }

  /// The number of blocks of queries of all groups; those of one group are consecutive.
  int64_t blocks() const { return problem_.batch() * problem_.groups() * blocks_per_group_; }
  RowBlock block(int64_t n) const;
  int64_t tasks() const;
  /// Tasks of the forward pass, in the order in which threads take them. A task has one or several
  /// blocks of queries of one group, because a worker packs their keys only once. Tasks get
  /// smaller towards the end, so that threads finish together. If blocks are few and differ in
  /// cost, each is a task, and those that cost most come first.
  /// @{
  struct QueryTask {
    int64_t first, last;  ///< numbers of query_block
  };
  QueryTask query_task(int64_t n) const {
    return {first_blocks_[static_cast<size_t>(n)], first_blocks_[static_cast<size_t>(n + 1)]};
  }
  RowBlock query_block(int64_t n) const;
  /// Whether a worker keeps the packed keys of a group, because the blocks of queries that it
  /// takes next mostly see the same keys. Quantized keys are not kept, because they are to
  /// save memory.
  bool keeps_keys() const { return keeps_keys_; }
  /// @}
  /// Tasks of the backward pass: the blocks of keys of a group, one after the other, so that its
  /// queries are in a cache. If tasks are few, those that cost most come first. If a mask shows
  /// different keys to different queries, blocks of keys of one group would often wait for each
  /// other, so threads take blocks of different groups.
  struct KeyTask {
    int64_t batch, group, key_block;
  };
  KeyTask key_task(int64_t n) const;
  /// The index of the block's first row among all rows [B, H, L].
  int64_t first_row(const RowBlock& block) const;
  KeyRange key_block(int64_t n) const {
    return {n * block_keys_, std::min((n + 1) * block_keys_, problem_.key_length())};
  }
  /// The keys that any query of the block sees according to causal, window and lengths, extended
  /// to the beginning of a cell.
  KeyRange keys(const RowBlock& block) const;
  KeyRange keys_of(const RowBlock& block, int64_t key_block) const {
    return both(keys(block), this->key_block(key_block));
  }
  /// `keys` without the cells at both ends that no query of the block sees. Cells that are left
  /// may be hidden too.
  KeyRange seen_of(const RowBlock& block, KeyRange keys) const;
  bool may_see(const RowBlock& block, KeyRange keys) const { return !seen_of(block, keys).empty(); }
  void describe_rows(const RowBlock& block, QueryRow* rows) const;
  ScoreFormat score_format(uint64_t dropout_key) const;

 private:
  void split_queries(int64_t most_rows, int64_t threads);
  void split_keys(int64_t threads);
  /// The number of blocks that tasks are made of: of queries, or of keys in the backward pass.
  int64_t task_blocks() const;
  int64_t busy_threads(int64_t threads) const;
  void make_query_tasks();
  int64_t blocks_of_small_task() const;
  /// The mean number of blocks of queries that see a key, in the first group of each sequence.
  double uses_of_keys() const;

  const Problem& problem_;
  const ShownKeys shown_keys_;
  const RelativeTable relative_;
  const LayoutUse use_;
  int64_t threads_;
  int64_t groups_at_once_;  // whose blocks of keys are neighboring tasks, if a mask varies
  int64_t block_heads_, block_queries_, blocks_per_group_, block_keys_;
  bool few_blocks_;
  bool costly_first_ = false, keeps_keys_ = false;
  std::vector<int64_t> first_blocks_;  // of each task of the forward pass, and the end of the last
  at::Tensor alibi_slopes_;            // float64 [B or 1, H], or undefined
};

/// A matrix whose row r begins at data + r * row.
template <typename T>
struct Matrix {
  const T* data;
  int64_t row;
};

/// Whether the rows of `tensor` can be an operand without being packed. Rows that are far apart
/// are packed, because they would share few sets of the cache, and each would take a page of
/// memory.
inline bool is_matrix(const at::Tensor& tensor, at::ScalarType operand) {
  return tensor.scalar_type() == operand && tensor.stride(3) == 1 &&
         tensor.stride(2) == tensor.size(3) && tensor.size(3) % kColumnMultiple == 0;
}

template <typename T>
bool is_matrix(const at::Tensor& tensor) {
  return is_matrix(tensor, c10::CppTypeToScalarType<T>::value);
}

/// Keys or values `tensor` as operand b of a product whose depth is the keys, in place or packed
/// into `scratch`.
template <typename Operand>
Matrix<Operand> key_matrix(const Problem& problem, const at::Tensor& tensor, const RowBlock& block,
                           KeyRange keys, Operand* scratch) {
  const auto& kernels = matrix_kernels_of<Operand>();
  const auto columns = padded(tensor.size(3));
  Matrix<Operand> matrix{scratch, columns};
  for_each_run(problem, tensor, block.batch, block.group, keys, [&](const Rows& rows, int64_t n) {
    if constexpr (kDepthOf<Operand> == 1) {
      if (rows.count == keys.last - keys.first && is_matrix<Operand>(tensor)) {
        matrix = {static_cast<const Operand*>(rows.data), rows.row_stride};
      } else {
        kernels.pack(rows, scratch + n * columns, columns);
      }
    } else {
      kernels.pack_columns(rows, scratch + operands<Operand>(n) * columns, columns);
    }
  });
  return matrix;
}

/// to = factor * rows transposed. Pairs are not multiplied by the factor, because bfloat16 would
/// be rounded again: `product_factor` multiplies their products instead.
template <typename Operand>
void pack_transposed(const Rows& rows, double factor, Operand* to, int64_t to_row) {
  const auto& kernels = matrix_kernels_of<Operand>();
  if constexpr (kDepthOf<Operand> == 1) {
    kernels.pack_transposed(rows, static_cast<Operand>(factor), to, to_row);
  } else {
    kernels.pack_transposed(rows, to, to_row);
  }
}

/// The factor of a product whose operand `pack_transposed` wrote: 1 if the operand has it.
template <typename T, typename Operand>
constexpr T product_factor(double factor) {
  return kDepthOf<Operand> == 1 ? T{1} : static_cast<T>(factor);
}

/// The block's rows of `tensor` [B, H, L, columns] as an operand of a product whose depth is the
/// columns, in place or packed into `scratch`.
template <typename Operand>
Matrix<Operand> query_matrix(const at::Tensor& tensor, const RowBlock& block, Operand* scratch) {
  const bool one_stride = block.heads == 1 || tensor.stride(1) == block.queries * tensor.stride(2);
  if (is_matrix<Operand>(tensor) && one_stride) {
    const auto rows =
        tensor_rows(tensor, block.batch, block.first_head, block.first_query, block.rows());
    return {static_cast<const Operand*>(rows.data), rows.row_stride};
  }
  const auto row = padded(operands<Operand>(tensor.size(3)));
  for (int64_t h = 0; h < block.heads; ++h) {
    const auto rows =
        tensor_rows(tensor, block.batch, block.first_head + h, block.first_query, block.queries);
    matrix_kernels_of<Operand>().pack(rows, scratch + h * block.queries * row, row);
  }
  return {scratch, row};
}

/// Multiply-adds of one product of all queries, of `head_dim` columns, and the keys that they see.
/// The query in the middle stands for all.
double multiply_adds(const Problem& problem, int64_t head_dim);

/// The gradient of a query is a sum of partial sums over this many keys each, so it does not
/// depend on the size of a block of keys.
constexpr int64_t kQuerySumKeys = 32;

}  // namespace heed::detail
