#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <limits>

#include "dtypes.h"
#include "kernels/block_layout.h"

namespace heed::detail {

namespace {

struct ForwardPass {
  const BlockLayout& layout;
  ScoreFormat format;
  const BlockOutput& result;
  at::Tensor sinks;  // [H] in the type computed in, or undefined
};

/// One worker's memory.
template <typename T>
struct ForwardScratch {
  explicit ForwardScratch(const BlockLayout& layout)
      : queries(layout.block_rows() * padded(layout.problem().head_dim())),
        transposed_keys(layout.problem().head_dim() * layout.tile_stride()),
        values(layout.block_keys() * padded(layout.problem().value_head_dim())),
        scores(layout.block_rows() * layout.tile_stride()),
        output(layout.block_rows() * padded(layout.problem().value_head_dim())),
        largest(layout.block_rows()),
        sum(layout.block_rows()),
        rows(static_cast<size_t>(layout.block_rows())) {}

  Buffer<T> queries;          // [rows, D]
  Buffer<T> transposed_keys;  // [D, tile_stride], times the scale
  Buffer<T> values;           // [keys, Dv]
  Buffer<T> scores;           // [rows, tile_stride]
  Buffer<T> output;           // [rows, Dv], before normalisation
  Buffer<T> largest, sum;     // [rows]
  std::vector<QueryRow> rows;
};

template <typename T>
void attend_to_keys(const ForwardPass& pass, const RowBlock& block, KeyRange keys,
                    const Matrix<T>& queries, const ForwardScratch<T>& scratch) {
  const auto& problem = pass.layout.problem();
  const auto& kernels = matrix_kernels_of<T>();
  const auto stride = pass.layout.tile_stride();
  const auto width = keys.last - keys.first;
  const auto value_columns = padded(problem.value_head_dim());
  const auto values = key_matrix(problem.value, block, keys, scratch.values.data());
  kernels.pack_transposed(tensor_rows(problem.key, block.batch, block.group, keys.first, width),
                          static_cast<T>(problem.scale), scratch.transposed_keys.data(), stride);
  for_each_part(scratch.rows.data(), block.rows(), keys, [&](const TilePart& part) {
    kernels.multiply({part.rows, padded(part.columns), problem.head_dim(),
                      queries.data + part.row * queries.row, queries.row, 1,
                      scratch.transposed_keys.data() + part.column, stride,
                      scratch.scores.data() + part.row * stride + part.column, stride,
                      /*accumulate=*/false});
  });
  score_kernels_of<T>().softmax({pass.format, scratch.rows.data(), block.rows(), keys.first, width,
                                 scratch.scores.data(), stride},
                                scratch.largest.data(), scratch.sum.data(), scratch.output.data(),
                                value_columns);
  for_each_part(scratch.rows.data(), block.rows(), keys, [&](const TilePart& part) {
    kernels.multiply({part.rows, value_columns, part.columns,
                      scratch.scores.data() + part.row * stride + part.column, stride, 1,
                      values.data + part.column * values.row, values.row,
                      scratch.output.data() + part.row * value_columns, value_columns,
                      /*accumulate=*/true});
  });
}

/// Normalises the output and writes it with the statistics.
template <typename T>
void finish(const ForwardPass& pass, const RowBlock& block, const ForwardScratch<T>& scratch) {
  const auto& problem = pass.layout.problem();
  const auto columns = padded(problem.value_head_dim());
  const auto group_rows = pass.layout.rows_per_group();
  const auto row =
      (block.batch * problem.groups() + block.group) * group_rows + pass.layout.first_row(block);
  T* largest = pass.result.largest.template mutable_data_ptr<T>() + row;
  T* inverse_sum = pass.result.inverse_sum.template mutable_data_ptr<T>() + row;
  for (int64_t r = 0; r < block.rows(); ++r) {
    const T sum = scratch.sum.data()[r];
    largest[r] = sum == 0 ? 0 : scratch.largest.data()[r];
    inverse_sum[r] = sum == 0 ? 0 : 1 / sum;
  }
  for (int64_t h = 0; h < block.heads; ++h) {
    matrix_kernels_of<T>().unpack(scratch.output.data() + h * block.queries * columns, columns,
                                  static_cast<T>(1 / (1 - problem.dropout)),
                                  inverse_sum + h * block.queries,
                                  tensor_rows(pass.result.output, block.batch, block.first_head + h,
                                              block.first_query, block.queries));
  }
}

/// Before any key, a row has seen its head's sink or nothing.
template <typename T>
void start_softmax(const ForwardPass& pass, const RowBlock& block,
                   const ForwardScratch<T>& scratch) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  const T* sinks = pass.sinks.defined() ? pass.sinks.template const_data_ptr<T>() : nullptr;
  for (int64_t h = 0; h < block.heads; ++h) {
    const T sink = sinks == nullptr ? kNone : sinks[block.first_head + h];
    std::fill_n(scratch.largest.data() + h * block.queries, block.queries, sink);
    std::fill_n(scratch.sum.data() + h * block.queries, block.queries, T(sink == kNone ? 0 : 1));
  }
}

template <typename T>
void attend_block(const ForwardPass& pass, const RowBlock& block, ForwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  const auto rows = block.rows();
  layout.describe_rows(block, scratch.rows.data());
  start_softmax(pass, block, scratch);
  std::fill_n(scratch.output.data(), rows * padded(layout.problem().value_head_dim()), T{0});
  const auto queries = query_matrix(layout.problem().query, block, scratch.queries.data());
  const auto range = layout.keys(block);
  for (int64_t key = range.first; key < range.last; key += layout.block_keys()) {
    attend_to_keys(pass, block, {key, std::min(key + layout.block_keys(), range.last)}, queries,
                   scratch);
  }
  finish(pass, block, scratch);
}

template <typename T>
void run(const BlockLayout& layout, uint64_t dropout_key, const BlockOutput& result) {
  const auto& problem = layout.problem();
  ForwardPass pass{layout, layout.score_format(dropout_key), result, {}};
  if (problem.sinks.defined()) {
    pass.sinks = problem.sinks.to(result.largest.scalar_type()).contiguous();
  }
  const auto blocks = layout.blocks_per_group();
  const auto groups = problem.groups();
  run_tasks(
      problem.batch() * groups * blocks,
      multiply_adds(layout, problem.head_dim() + problem.value_head_dim()), [&](TaskQueue& queue) {
        ForwardScratch<T> scratch(layout);
        for (int64_t task = 0; queue.next(task);) {
          const auto batch_group = task / blocks;
          // Causal blocks cost the more the later they are: the cheap ones even out the end.
          attend_block(
              pass,
              layout.block(batch_group / groups, batch_group % groups, blocks - 1 - task % blocks),
              scratch);
        }
      });
}

}  // namespace

BlockOutput block_forward(const Problem& problem, uint64_t dropout_key) {
  const auto batch = problem.batch();
  const auto heads = problem.heads();
  const auto length = problem.query_length();
  const auto dtype = problem.query.scalar_type();
  const auto options = problem.query.options().requires_grad(false);
  BlockOutput result;
  // Heads merge without a copy, as in LibTorch's own kernel.
  result.output =
      at::empty({batch, length, heads, problem.value_head_dim()}, options).transpose(1, 2);
  result.largest = at::empty({batch, heads, length}, options.dtype(compute_dtype(dtype)));
  result.inverse_sum = at::empty_like(result.largest);
  const BlockLayout layout(problem, at::get_num_threads());
  if (dtype == at::kDouble) {
    run<double>(layout, dropout_key, result);
  } else {
    run<float>(layout, dropout_key, result);
  }
  return result;
}

}  // namespace heed::detail
