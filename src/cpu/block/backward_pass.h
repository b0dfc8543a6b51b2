// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/block/distance_gradients.h"
#include "cpu/block/products.h"

/// The gradients of a tile's scores, for the passes that need them (backward.cpp and
/// bias_gradient.h):
///
///   weights   = exp(Q (scale K)^T + bias - maximum) / sum          [rows, keys]
///   gradients = dO (V / (1 - dropout))^T, 0 where dropped          [rows, keys]
///   gradients = weights * (gradients - delta);  weights = 0 where dropped
///
///   operands   queries [rows, D]   transposed keys [D, keys]     output gradients [rows, Dv]
///              keys [keys, D]      transposed values [Dv, keys]  memory of each worker
///
/// The two products bound it. docs/kernels.md, Block.

namespace heed::detail {

/// The inputs and results of a backward pass. A task is a block of keys of one group. It completes
/// the gradients of these keys and values, and adds to those of queries in its turn, so that no
/// sum depends on the number of threads.
struct BackwardPass {
  const BlockLayout& layout;
  ScoreFormat format;
  const BlockOutput& forward;
  const at::Tensor& output_gradient;
  BlockGradients& gradients;
  // [B, H, L]: the sum over keys of weight times its gradient, less the gradient of the lse
  at::Tensor delta;
  at::Tensor query_sums;           // [B, H, L, D padded]; gradients.query if that can hold them
  const at::Tensor& lse_gradient;  // [B, H, L], or undefined
  const WantedGradients& wanted;
  const DistanceGradients& distances;

  const Problem& problem() const { return layout.problem(); }
  double kept_scale() const { return 1 / (1 - problem().dropout); }
};

/// One worker's memory. Products multiply operands of type Operand: T, or BFloat16Pair.
template <typename T, typename Operand>
struct BackwardScratch {
  explicit BackwardScratch(const BlockLayout& layout)
      : head_dim(operands<Operand>(layout.problem().head_dim())),
        value_head_dim(operands<Operand>(layout.problem().value_head_dim())),
        queries(layout.block_rows() * padded(head_dim)),
        output_gradients(layout.block_rows() * padded(value_head_dim)),
        deep_queries(deep_rows(layout) * padded(layout.problem().head_dim())),
        deep_output_gradients(deep_rows(layout) * padded(layout.problem().value_head_dim())),
        keys(operands<Operand>(layout.block_keys()) * padded(layout.problem().head_dim())),
        transposed_keys(head_dim * layout.tile_stride()),
        transposed_values(value_head_dim * layout.tile_stride()),
        scores(tile_rows(layout) * layout.tile_stride()),
        gradients(tile_rows(layout) * layout.tile_stride()),
        key_gradients(layout.block_keys() * padded(layout.problem().head_dim())),
        value_gradients(layout.block_keys() * padded(layout.problem().value_head_dim())),
        tile(layout) {}

  static int64_t deep_rows(const BlockLayout& layout) {
    return kDepthOf<Operand> == 1 ? 0 : operands<Operand>(layout.block_rows());
  }
  static int64_t tile_rows(const BlockLayout& layout) {
    return operands<Operand>(layout.block_rows()) * kDepthOf<Operand>;
  }

  int64_t head_dim, value_head_dim;          // D and Dv, in operands
  Buffer<Operand> queries;                   // [rows, D]
  Buffer<Operand> output_gradients;          // [rows, Dv]
  Buffer<Operand> deep_queries;              // [rows, D], pairs of rows
  Buffer<Operand> deep_output_gradients;     // [rows, Dv], pairs of rows
  Buffer<Operand> keys, transposed_keys;     // of a key block
  Buffer<Operand> transposed_values;         // of a key block
  Buffer<T> scores, gradients;               // [rows, tile_stride]
  Buffer<T> key_gradients, value_gradients;  // of a key block
  Tile tile;
};

/// The block's first row of `of_all` [B, H, L], which is `largest`, `inverse_sum` or `delta`.
template <typename T>
const T* block_statistics(const BackwardPass& pass, const at::Tensor& of_all,
                          const RowBlock& block) {
  return of_all.template const_data_ptr<T>() + pass.layout.first_row(block);
}

/// The queries and output gradients of a tile's rows, as operands.
template <typename Operand>
struct TileRows {
  RowBlock block;
  Matrix<Operand> queries, output_gradients;            // the depth is the columns
  Matrix<Operand> deep_queries, deep_output_gradients;  // the depth is the rows
};

/// `rows` as an operand of a product whose depth is the rows. Pairs of neighbors in a row become
/// pairs of neighbors in a column, in `copy`; other numbers stay where they are.
template <typename Operand>
Matrix<Operand> deepened(const Matrix<Operand>& rows, int64_t count, int64_t columns,
                         const Buffer<Operand>& copy) {
  if constexpr (kDepthOf<Operand> == 1) {
    return rows;
  } else {
    const Rows numbers = {const_cast<Operand*>(rows.data),
                          ElementType::bfloat16,
                          count,
                          columns,
                          rows.row * kDepthOf<Operand>,
                          1};
    matrix_kernels_of<Operand>().pack_columns(numbers, copy.data(), padded(columns));
    return {copy.data(), padded(columns)};
  }
}

template <typename T, typename Operand>
TileRows<Operand> tile_rows(const BackwardPass& pass, const RowBlock& block,
                            const BackwardScratch<T, Operand>& scratch) {
  const auto queries = query_matrix(pass.problem().query, block, scratch.queries.data());
  const auto gradients = query_matrix(pass.output_gradient, block, scratch.output_gradients.data());
  return {block, queries, gradients,
          deepened(queries, block.rows(), pass.problem().head_dim(), scratch.deep_queries),
          deepened(gradients, block.rows(), pass.problem().value_head_dim(),
                   scratch.deep_output_gradients)};
}

template <typename T, typename Operand>
void pack_keys(const BackwardPass& pass, int64_t batch, int64_t group, KeyRange keys,
               const BackwardScratch<T, Operand>& scratch) {
  const auto pack = [&](const at::Tensor& tensor, double factor, Operand* to) {
    pack_transposed(tensor_rows(tensor, batch, group, keys.first, keys.last - keys.first), factor,
                    to, pass.layout.tile_stride());
  };
  pack(pass.problem().key, pass.problem().scale, scratch.transposed_keys.data());
  pack(pass.problem().value, pass.kept_scale(), scratch.transposed_values.data());
}

/// Computes the weights of the tile and the gradients of its scores, in `scores` and `gradients`
/// of scratch; softmax_backward describes where pairs lie.
template <typename T, typename Operand>
void tile_gradients(const BackwardPass& pass, const TileRows<Operand>& rows,
                    BackwardScratch<T, Operand>& scratch) {
  auto& tile = scratch.tile;
  const auto multiply = [&](const Matrix<Operand>& a, int64_t depth, const Buffer<Operand>& b,
                            double factor, const Buffer<T>& to) {
    multiply_to_tile(tile, a, depth, b.data(), factor, pass.layout.tile_stride(), to.data());
  };
  multiply(rows.queries, scratch.head_dim, scratch.transposed_keys, pass.problem().scale,
           scratch.scores);
  multiply(rows.output_gradients, scratch.value_head_dim, scratch.transposed_values,
           pass.kept_scale(), scratch.gradients);
  score_kernels_of<T>().softmax_backward(
      tile.scores(pass.format, scratch.scores.data()),
      block_statistics<T>(pass, pass.forward.largest, rows.block),
      block_statistics<T>(pass, pass.forward.inverse_sum, rows.block),
      block_statistics<T>(pass, pass.delta, rows.block), scratch.gradients.data());
}

}  // namespace heed::detail
