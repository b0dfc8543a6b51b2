// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "core/direct.h"
#include "core/dtypes.h"
#include "cpu/block/key_operands.h"

// The forward pass over blocks, with a running softmax (Dao et al. 2022):
//
//   for each block of queries, in parallel:
//     maximum, sum = sink, 1;  or -infinity, 0 without a sink
//     for each block of keys that some of them see, in order:
//       scores  = Q (scale K)^T                       # only cells that are seen, [256, 512]
//       weights = exp(scores - new maximum), in the memory of scores; rescale sum and output
//       output += weights V                           # 0 where dropped; sums of 256 keys
//     write output / (sum * (1 - dropout)), maximum and 1 / sum
//
//   Q [rows, D]   K^T [D, keys]   scores [rows, keys]   V [keys, Dv]   output [rows, Dv]
//
// The multiply units bound the two products, and these take most of the time: on a core of a Zen
// 5, 16.2 of 18.8 ns for 16 scores in float32 with D of 64. During the first product, the next
// keys and values are prefetched. docs/kernels.md, Block ("Speed limit").

namespace heed::detail {

namespace {

struct ForwardPass {
  const BlockLayout& layout;
  ScoreFormat format;
  const BlockOutput& result;
  at::Tensor sinks;  // [H] in the type computed in, or undefined
};

/// The maximum of a row that has seen no key.
template <typename T>
constexpr T kNone = -std::numeric_limits<T>::infinity();

/// `rows` rounded up to whole strips.
int64_t strip_rows(int64_t rows) { return round_up(rows, kStripRows); }

/// One worker's memory. Products multiply operands of type Operand: T, or BFloat16Pair.
template <typename T, typename Operand>
struct ForwardScratch {
  explicit ForwardScratch(const BlockLayout& layout)
      : head_dim(operands<Operand>(layout.problem().head_dim())),
        queries(layout.block_rows() * padded(head_dim)),
        keys(layout),
        scores(layout.block_rows() * layout.tile_stride()),
        output(layout.block_rows() * padded(layout.problem().value_head_dim())),
        largest(strip_rows(layout.block_rows())),
        sum(strip_rows(layout.block_rows())),
        lane_maxima(layout.block_rows() * kColumnMultiple),
        tile(layout) {}

  /// The rows of keys and values that will be packed for `next`; none if these are packed already.
  RowsAhead ahead(const Problem& problem, const RowBlock& block, KeyRange next) {
    next_rows.clear();
    if (!next.empty() && !keys.has(block, next)) {
      add_addresses(problem, problem.key, block.batch, block.group, next, next_rows);
      add_addresses(problem, problem.value, block.batch, block.group, next, next_rows);
    }
    const auto columns = std::max(problem.head_dim(), problem.value_head_dim());
    return {next_rows.data(), next_rows.data() + next_rows.size(),
            columns * problem.key.element_size(), 0};
  }

  int64_t head_dim;         // D, in operands
  Buffer<Operand> queries;  // [rows, D]
  KeyOperands<Operand> keys;
  Buffer<T> scores;        // [rows, tile_stride]
  Buffer<T> output;        // [rows, Dv], before normalization
  Buffer<T> largest, sum;  // [rows rounded up to whole strips]
  Buffer<T> lane_maxima;   // [rows, kColumnMultiple], of a tile's product
  std::vector<const char*> next_rows;
  Tile tile;
};

/// Adds the keys of the tile to maximum, sum and output, and prefetches those of the next, `next`.
template <typename T, typename Operand>
void attend_to_tile(const ForwardPass& pass, const Matrix<Operand>& queries, KeyRange next,
                    ForwardScratch<T, Operand>& scratch) {
  const auto& problem = pass.layout.problem();
  auto& tile = scratch.tile;
  const auto& block = tile.block();
  const auto stride = pass.layout.tile_stride();
  const auto keys = scratch.keys.pack(tile);
  auto ahead = scratch.ahead(problem, block, next);
  T* lane_maxima = nullptr;
  if (!pass.format.changes_scores && tile.has_unhidden(0, block.rows())) {
    lane_maxima = scratch.lane_maxima.data();
    std::fill_n(lane_maxima, block.rows() * kColumnMultiple, kNone<T>);
  }
  multiply_to_tile<T, Operand>(tile, queries, scratch.head_dim, keys.transposed_keys, problem.scale,
                               stride, scratch.scores.data(), &ahead, lane_maxima);
  score_kernels_of<T>().softmax(tile.scores(pass.format, scratch.scores.data(), lane_maxima),
                                scratch.largest.data(), scratch.sum.data(), scratch.output.data(),
                                padded(problem.value_head_dim()));
  constexpr int64_t kSumKeys = 256;  // the terms of a longer sum would be rounded too coarsely
  add_over_keys(tile, reinterpret_cast<const Operand*>(scratch.scores.data()), stride, keys.values,
                kSumKeys, scratch.output.data());
}

/// Writes normalized weights from a tile that holds all keys that the block sees. Other weights
/// are 0 in the result already.
template <typename T, typename Operand>
void write_weights(const ForwardPass& pass, const RowBlock& block, KeyRange keys,
                   const T* inverse_sum, const ForwardScratch<T, Operand>& scratch) {
  const auto& weights = pass.result.weights;
  const auto stride = pass.layout.tile_stride();
  for (int64_t h = 0; h < block.heads; ++h) {
    auto rows = tensor_rows(weights.narrow(3, keys.first, keys.last - keys.first), block.batch,
                            block.first_head + h, block.first_query, block.queries);
    matrix_kernels_of<T>().unpack(scratch.scores.data() + h * block.queries * stride, stride, 1,
                                  inverse_sum + h * block.queries, rows);
  }
}

/// Normalizes the output and writes it, with the maximum and 1 / sum of each row.
template <typename T, typename Operand>
void finish(const ForwardPass& pass, const RowBlock& block, KeyRange keys,
            const ForwardScratch<T, Operand>& scratch) {
  const auto& problem = pass.layout.problem();
  const auto columns = padded(problem.value_head_dim());
  const auto row = pass.layout.first_row(block);
  T* largest = pass.result.largest.template mutable_data_ptr<T>() + row;
  T* inverse_sum = pass.result.inverse_sum.template mutable_data_ptr<T>() + row;
  for (int64_t r = 0; r < block.rows(); ++r) {
    const T sum = scratch.sum.data()[r];
    largest[r] = sum == 0 ? 0 : scratch.largest.data()[r];
    inverse_sum[r] = sum == 0 ? 0 : 1 / sum;
  }
  const auto factor = static_cast<T>(1 / (1 - problem.dropout));
  for (int64_t h = 0; h < block.heads; ++h) {
    const auto rows_of = [&](const at::Tensor& tensor) {
      return tensor_rows(tensor, block.batch, block.first_head + h, block.first_query,
                         block.queries);
    };
    const T* sums = scratch.output.data() + h * block.queries * columns;
    const T* factors = inverse_sum + h * block.queries;
    const auto output = rows_of(pass.result.output);
    matrix_kernels_of<T>().unpack(sums, columns, factor, factors, output);
    if (pass.result.output_rest.defined()) {
      matrix_kernels_of<T>().unpack_rest(sums, columns, factor, factors, output,
                                         rows_of(pass.result.output_rest));
    }
  }
  if (pass.result.weights.defined()) write_weights(pass, block, keys, inverse_sum, scratch);
}

/// Sets maximum and sum of each row to those of its head's sink, or to those of no key.
template <typename T, typename Operand>
void start_softmax(const ForwardPass& pass, const RowBlock& block,
                   const ForwardScratch<T, Operand>& scratch) {
  std::fill_n(scratch.largest.data(), strip_rows(block.rows()), kNone<T>);
  std::fill_n(scratch.sum.data(), strip_rows(block.rows()), T{0});
  if (!pass.sinks.defined()) return;
  const T* sinks = pass.sinks.template const_data_ptr<T>();
  for (int64_t h = 0; h < block.heads; ++h) {
    const T sink = sinks[block.first_head + h];
    std::fill_n(scratch.largest.data() + h * block.queries, block.queries, sink);
    std::fill_n(scratch.sum.data() + h * block.queries, block.queries, T(sink == kNone<T> ? 0 : 1));
  }
}

template <typename T, typename Operand>
void attend_block(const ForwardPass& pass, const RowBlock& block,
                  ForwardScratch<T, Operand>& scratch) {
  const auto& layout = pass.layout;
  const auto rows = block.rows();
  scratch.tile.set_rows(block);
  start_softmax(pass, block, scratch);
  std::fill_n(scratch.output.data(), rows * padded(layout.problem().value_head_dim()), T{0});
  const auto queries = query_matrix(layout.problem().query, block, scratch.queries.data());
  const auto range = layout.keys(block);
  const bool with_weights = pass.result.weights.defined();  // so one tile has the whole range
  auto keys = layout.key_block(range.first / layout.block_keys());
  auto seen = with_weights ? range : layout.seen_of(block, keys);
  while (keys.first < range.last) {
    keys = {keys.last, keys.last + layout.block_keys()};
    const auto next = layout.seen_of(block, keys);
    if (!seen.empty() && scratch.tile.set_keys(seen)) {
      attend_to_tile(pass, queries, next, scratch);
    } else if (with_weights) {
      std::fill_n(scratch.scores.data(), rows * layout.tile_stride(), T{0});
    }
    seen = next;
  }
  finish(pass, block, range, scratch);
}

template <typename T, typename Operand = T>
void run(const BlockLayout& layout, uint64_t dropout_key, const BlockOutput& result,
         WeightForm weights = WeightForm::numbers) {
  const auto& problem = layout.problem();
  ForwardPass pass{layout, layout.score_format(dropout_key), result, {}};
  pass.format.weights = weights;
  pass.format.clears_all = result.weights.defined();
  if (problem.sinks.defined()) {
    pass.sinks = problem.sinks.contiguous();
  }
  run_tasks(layout.tasks(), layout.threads(), [&](TaskQueue& queue) {
    ForwardScratch<T, Operand> scratch(layout);
    for (int64_t task = 0; queue.next(task);) {
      const auto blocks = layout.query_task(task);
      // Heads may share a page of the system's memory in the output. If two threads are the first
      // to write to it, one waits for the other. So every second task begins at the other end.
      const bool from_last = task % 2 != 0;
      for (auto n = blocks.first; n < blocks.last; ++n) {
        const auto block = from_last ? blocks.last - 1 - (n - blocks.first) : n;
        attend_block(pass, layout.query_block(block), scratch);
      }
    }
  });
}

}  // namespace

BlockOutput block_forward(const Problem& problem, uint64_t dropout_key, BlockUse use) {
  const auto batch = problem.batch();
  const auto heads = problem.heads();
  const auto length = problem.query_length();
  const auto dtype = problem.query.scalar_type();
  BlockOutput result;
  result.output =
      empty_heads(batch, heads, length, problem.value_head_dim(), problem.result_dtype());
  result.largest = empty_on_cpu({batch, heads, length}, compute_dtype(dtype));
  result.inverse_sum = empty_as(result.largest);
  const bool rounds = compute_dtype(dtype) != problem.result_dtype();
  if (use == BlockUse::training && rounds) result.output_rest = empty_as(result.output);
  const bool with_weights = use == BlockUse::weights;
  if (with_weights) {
    result.weights = empty_on_cpu({batch, heads, length, problem.key_length()}, dtype);
    const bool leaves_out = problem.hides_by_distance() || problem.padded();
    if (leaves_out) result.weights.zero_();  // tiles have no other keys
  }
  const BlockLayout layout(problem, with_weights ? LayoutUse::whole_rows : LayoutUse::forward);
  if (dtype == at::kDouble) {
    run<double>(layout, dropout_key, result);
  } else if (use == BlockUse::inference && multiplies_pairs(dtype)) {
    run<float, BFloat16Pair>(layout, dropout_key, result, WeightForm::pairs);
  } else if (use == BlockUse::training && trains_in_pairs(problem)) {
    run<float, BFloat16Pair>(layout, dropout_key, result, WeightForm::training_pairs);
  } else {
    run<float>(layout, dropout_key, result);
  }
  return result;
}

}  // namespace heed::detail
