// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "cpu/block/bias_gradient.h"
#include "cpu/block/turns.h"

// The backward pass over blocks, which computes each tile of scores again:
//
//   delta = sum over columns of dO * O, less the gradient of the lse          # for each row
//   for each block of keys of a group, in parallel:
//     pack K^T and V^T of the block
//     for each block of queries that sees some of it, from the last to the first:
//       weights, gradients of scores = tile_gradients                # backward_pass.h, 2 products
//       dV += weights^T dO;  dK += gradients^T Q                     # 2 products
//       wait for the turn of this block of keys;  dQ += gradients K  # turns.h, 1 product
//     write scale * dK and dV / (1 - dropout)
//   write scale * dQ
//   if they are wanted: the gradients of a bias (bias_gradient.h), of sinks, and of what depends on
//   distances (distance_gradients.h)
//
// The five products of a tile bound it: they take the multiply units. docs/kernels.md, Block.

namespace heed::detail {

namespace {

/// Sets delta to 0 where it is NaN or infinite in a row whose output is all 0. A row that sees no
/// key has such an output, whatever its gradient is.
template <typename T>
void clear_unseeing(const Matrix<T>& outputs, int64_t count, int64_t columns, T* delta) {
  for (int64_t r = 0; r < count; ++r) {
    if (std::isfinite(delta[r])) continue;
    const T* row = outputs.data + r * outputs.row;
    if (std::all_of(row, row + columns, [](T x) { return x == 0; })) delta[r] = 0;
  }
}

template <typename T>
void compute_delta(const BackwardPass& pass) {
  const auto& layout = pass.layout;
  const auto columns = pass.problem().value_head_dim();
  const auto cost = static_cast<double>(pass.delta.numel() * columns);
  run_tasks(layout.blocks(), useful_threads(cost), [&](TaskQueue& queue) {
    const auto size = layout.block_rows() * padded(columns);
    const Buffer<T> gradient_rows(size), output_rows(size), of_rest(layout.block_rows());
    for (int64_t task = 0; queue.next(task);) {
      const auto block = layout.block(task);
      const auto gradients = query_matrix(pass.output_gradient, block, gradient_rows.data());
      const auto dot_rows = [&](const at::Tensor& outputs, T* to) {
        const auto rows = query_matrix(outputs, block, output_rows.data());
        matrix_kernels_of<T>().dot_rows(gradients.data, gradients.row, rows.data, rows.row,
                                        block.rows(), columns, to);
        clear_unseeing(rows, block.rows(), columns, to);
      };
      T* delta = pass.delta.template mutable_data_ptr<T>() + layout.first_row(block);
      dot_rows(pass.forward.output, delta);
      if (!pass.forward.output_rest.defined()) continue;
      dot_rows(pass.forward.output_rest, of_rest.data());
      matrix_kernels_of<T>().add(of_rest.data(), block.rows(), delta);
    }
  });
}

/// Weights or gradients of a tile, as `softmax_backward` wrote them, for a product whose depth is
/// the rows.
template <typename Operand>
struct TileOfRows {
  const Operand* data;
  int64_t row;  // operands from one row to the next
};

template <typename T, typename Operand>
TileOfRows<Operand> weights_of_rows(const BlockLayout& layout,
                                    const BackwardScratch<T, Operand>& scratch) {
  return {reinterpret_cast<const Operand*>(scratch.scores.data()),
          layout.tile_stride() * kDepthOf<Operand>};
}

template <typename T, typename Operand>
TileOfRows<Operand> gradients_of_rows(const BlockLayout& layout,
                                      const BackwardScratch<T, Operand>& scratch) {
  const auto stride = layout.tile_stride();
  const auto* data =
      kDepthOf<Operand> == 1 ? scratch.gradients.data() : scratch.scores.data() + stride;
  return {reinterpret_cast<const Operand*>(data), stride * kDepthOf<Operand>};
}

/// sums [keys, columns] += tile transposed times `rows`, which are rows of `tensor`. `copy` has
/// room for a copy of them.
template <typename T, typename Operand>
void add_to_keys(const TileOfRows<Operand>& tile_data, Matrix<Operand> rows,
                 const at::Tensor& tensor, const Buffer<Operand>& copy,
                 BackwardScratch<T, Operand>& scratch, T* sums) {
  auto& tile = scratch.tile;
  const auto& block = tile.block();
  const auto depth = operands<Operand>(block.rows());
  const auto columns = padded(tensor.size(3));
  const bool took_some =
      !tile.is_whole() && take_non_finite(rows, depth, tensor.size(3), copy.data());
  tile.for_each_sum_over_rows([&](int64_t column, int64_t count,
                                  const std::vector<DepthRun>& row_runs) {
    const auto runs = operand_runs<Operand>(row_runs);
    // The tile is transposed by exchanging its strides.
    matrix_kernels_of<Operand>().multiply({count, columns, depth, tile_data.data + column, 1,
                                           tile_data.row, rows.data, rows.row,
                                           sums + column * columns, columns, /*accumulate=*/true,
                                           runs.data(), static_cast<int64_t>(runs.size())});
  });
  if (!took_some) return;
  add_non_finite(
      block.rows(),
      [&](int64_t r) {
        return tensor_rows(tensor, block.batch, block.first_head + r / block.queries,
                           block.first_query + r % block.queries, 1);
      },
      [&](int64_t r, const auto& add) {
        const auto* row = tile_data.data + r / kDepthOf<Operand> * tile_data.row;
        for (int64_t n = 0; n < tile.width(); ++n) {
          if (!sees(tile.row(r), tile.keys().first + n)) continue;
          add(n, element_of<T>(row[n], r));
        }
      },
      sums, columns);
}

/// Adds the tile to the gradients of its keys and values.
template <typename T, typename Operand>
void add_to_key_gradients(const BackwardPass& pass, const TileRows<Operand>& rows,
                          BackwardScratch<T, Operand>& scratch) {
  constexpr bool kInPairs = kDepthOf<Operand> != 1;
  if (pass.gradients.value.defined()) {
    add_to_keys(weights_of_rows(pass.layout, scratch), rows.deep_output_gradients,
                pass.output_gradient,
                kInPairs ? scratch.deep_output_gradients : scratch.output_gradients, scratch,
                scratch.value_gradients.data());
  }
  if (pass.gradients.key.defined()) {
    add_to_keys(gradients_of_rows(pass.layout, scratch), rows.deep_queries, pass.problem().query,
                kInPairs ? scratch.deep_queries : scratch.queries, scratch,
                scratch.key_gradients.data());
  }
}

/// Adds the tile to the gradients of its queries.
template <typename T, typename Operand>
void add_to_queries(const BackwardPass& pass, const KeyRows<Operand>& keys,
                    BackwardScratch<T, Operand>& scratch) {
  auto& tile = scratch.tile;
  const auto first = pass.layout.first_row(tile.block()) * pass.query_sums.size(3);
  add_over_keys(tile, reinterpret_cast<const Operand*>(scratch.gradients.data()),
                pass.layout.tile_stride(), keys, kQuerySumKeys,
                pass.query_sums.template mutable_data_ptr<T>() + first);
}

template <typename T, typename Operand>
void write_key_gradients(const BackwardPass& pass, int64_t batch, int64_t group, KeyRange keys,
                         const BackwardScratch<T, Operand>& scratch) {
  const auto write = [&](const Buffer<T>& sums, double factor, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    const auto rows = tensor_rows(gradient, batch, group, keys.first, keys.last - keys.first);
    matrix_kernels_of<T>().unpack(sums.data(), padded(rows.columns), static_cast<T>(factor),
                                  nullptr, rows);
  };
  write(scratch.key_gradients, pass.problem().scale, pass.gradients.key);
  write(scratch.value_gradients, pass.kept_scale(), pass.gradients.value);
}

/// Task `task`: the gradients of a block of keys, and what they add to those of queries.
template <typename T, typename Operand>
void key_block_gradients(const BackwardPass& pass, int64_t task, GradientTurns& turns,
                         DistanceSums<T>& sums, BackwardScratch<T, Operand>& scratch) {
  const auto& layout = pass.layout;
  const auto& problem = pass.problem();
  const auto [batch, group, key_block] = layout.key_task(task);
  const auto keys = layout.key_block(key_block);
  const auto count = keys.last - keys.first;
  pack_keys(pass, batch, group, keys, scratch);
  sums.clear();
  std::fill_n(scratch.key_gradients.data(), count * padded(problem.head_dim()), T{0});
  std::fill_n(scratch.value_gradients.data(), count * padded(problem.value_head_dim()), T{0});
  const auto first = (batch * problem.groups() + group) * layout.blocks_per_group();
  const auto operand_keys = key_rows(problem, problem.key, layout.block(first), keys,
                                     problem.may_hide(), scratch.keys.data());
  // From the last block of queries, which causal hides from no block of keys: so each block of
  // keys can follow the one before it at once.
  for (auto n = first + layout.blocks_per_group() - 1; n >= first; --n) {
    const auto block = layout.block(n);
    if (!layout.may_see(block, keys)) continue;
    scratch.tile.set_rows(block);
    const bool sees = scratch.tile.set_keys(keys);
    if (sees) {
      if (pass.distances.are_wanted()) {
        sums.take_rows_of(scratch.tile, layout.heads_per_group());
      }
      const auto rows = tile_rows(pass, block, scratch);
      tile_gradients(pass, rows, scratch);
      add_to_key_gradients(pass, rows, scratch);
    }
    if (!pass.query_sums.defined()) continue;
    if (!turns.wait(n, key_block)) return;
    if (sees) add_to_queries(pass, operand_keys, scratch);
    turns.pass_on(n, key_block);
  }
  write_key_gradients(pass, batch, group, keys, scratch);
  if (!pass.distances.are_wanted() || !turns.wait_for_task(task)) return;
  pass.distances.add(sums, batch, group * layout.heads_per_group());
  turns.pass_on_task(task);
}

template <typename T>
void write_query_gradients(const BackwardPass& pass) {
  const auto& problem = pass.problem();
  const auto columns = pass.query_sums.size(3);
  const auto length = problem.query_length();
  const auto cost = static_cast<double>(pass.query_sums.numel());
  run_tasks(problem.batch() * problem.heads(), useful_threads(cost), [&](TaskQueue& queue) {
    for (int64_t head = 0; queue.next(head);) {
      matrix_kernels_of<T>().unpack(
          pass.query_sums.template const_data_ptr<T>() + head * length * columns, columns,
          static_cast<T>(problem.scale), nullptr,
          tensor_rows(pass.gradients.query, head / problem.heads(), head % problem.heads(), 0,
                      length));
    }
  });
}

template <typename T, typename Operand>
void run(const BackwardPass& pass) {
  const auto& layout = pass.layout;
  GradientTurns turns(layout);
  run_tasks(layout.tasks(), layout.threads(), [&](TaskQueue& queue) {
    BackwardScratch<T, Operand> scratch(layout);
    DistanceSums<T> sums(layout, pass.wanted);
    for (int64_t task = 0; queue.next(task);) {
      turns.run([&] { key_block_gradients(pass, task, turns, sums, scratch); });
    }
  });
  if (pass.query_sums.defined()) write_query_gradients<T>(pass);
}

template <typename T, typename Operand = T>
void run_all(const BackwardPass& pass) {
  const auto& gradients = pass.gradients;
  compute_delta<T>(pass);
  if (pass.lse_gradient.defined()) pass.delta.sub_(pass.lse_gradient);
  if (gradients.query.defined() || gradients.key.defined() || gradients.value.defined() ||
      pass.distances.are_wanted()) {
    run<T, Operand>(pass);
  }
  if (gradients.bias.defined()) BiasGradient<T>(pass, gradients.bias).run();
}

/// The gradient of each sink, which acts as a key of value 0: minus the sum of its weight times
/// delta.
at::Tensor sink_gradients(const BackwardPass& pass) {
  const auto& sinks = pass.problem().sinks;
  const auto weights =
      (sinks.view({1, -1, 1}) - pass.forward.largest).exp() * pass.forward.inverse_sum;
  return (weights * pass.delta).sum(at::IntArrayRef{0, 2}).neg();
}

/// Zeros [B, H, L, D padded] of the type computed in: the query gradient itself if it can hold
/// them, else a new tensor.
at::Tensor make_query_sums(const Problem& problem, at::ScalarType computed_in,
                           at::Tensor& gradient) {
  if (is_matrix(gradient, computed_in) && gradient.is_contiguous()) return gradient.zero_();
  return at::zeros(
      {problem.batch(), problem.heads(), problem.query_length(), padded(problem.head_dim())},
      gradient.options().dtype(computed_in));
}

}  // namespace

BlockGradients block_backward(const Problem& problem, uint64_t dropout_key,
                              const BlockOutput& forward, const at::Tensor& output_gradient,
                              const at::Tensor& lse_gradient, const WantedGradients& wanted) {
  BlockGradients gradients;
  const auto allocate = [&](const at::Tensor& like, bool is_wanted) {
    if (!is_wanted) return at::Tensor();
    return at::empty_like(
        like, problem.rounds() ? like.options() : like.options().dtype(problem.result_dtype()));
  };
  gradients.query = allocate(problem.query, wanted[0]);
  gradients.key = allocate(problem.key, wanted[1]);
  gradients.value = allocate(problem.value, wanted[2]);
  if (wanted[3]) gradients.bias = at::empty(problem.bias.sizes(), problem.bias.options());
  const BlockLayout layout(problem, LayoutUse::backward);
  const auto computed_in = forward.largest.scalar_type();
  const DistanceGradients distances(layout, wanted, computed_in);
  BackwardPass pass{layout,    layout.score_format(dropout_key),
                    forward,   output_gradient,
                    gradients, at::empty_like(forward.largest),
                    {},        lse_gradient,
                    wanted,    distances};
  pass.format.sums_distances = distances.are_wanted();
  if (wanted[0]) pass.query_sums = make_query_sums(problem, computed_in, gradients.query);
  if (computed_in == at::kDouble) {
    run_all<double>(pass);
  } else if (trains_in_pairs(problem)) {
    pass.format.weights = WeightForm::training_pairs;
    run_all<float, BFloat16Pair>(pass);
  } else {
    run_all<float>(pass);
  }
  if (wanted[4]) gradients.sinks = sink_gradients(pass);
  gradients.relative_bias = distances.relative_bias(computed_in);
  gradients.alibi_slopes = distances.alibi_slopes(computed_in);
  return gradients;
}

}  // namespace heed::detail
