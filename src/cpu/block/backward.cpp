#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "cpu/block/layout.h"

namespace heed::detail {

namespace {

/// A task is one group and a run of its key blocks, whose key and value gradients it finishes; its
/// part of the query gradients is summed with the other runs' in a fixed order afterwards.
struct BackwardPass {
  const BlockLayout& layout;
  ScoreFormat format;
  const BlockOutput& forward;
  const at::Tensor& output_gradient;
  BlockGradients& gradients;
  int64_t runs;            // a group
  at::Tensor query_parts;  // [B * G, runs, rows, D padded], or undefined

  const Problem& problem() const { return layout.problem(); }
  double kept_scale() const { return 1 / (1 - problem().dropout); }
};

/// Enough tasks to share out evenly, few enough that the parts to be summed stay small. A matter of
/// shape alone, so that results are the same for any number of threads.
int64_t runs_per_group(const BlockLayout& layout) {
  constexpr int64_t kTasks = 32;
  constexpr int64_t kMaxRuns = 8;
  const auto groups = layout.problem().batch() * layout.problem().groups();
  return std::min({ceil_div(kTasks, groups), layout.key_blocks(), kMaxRuns});
}

template <typename T>
struct BackwardScratch {
  explicit BackwardScratch(const BlockLayout& layout)
      : queries(layout.rows_per_group() * padded(layout.problem().head_dim())),
        output_gradients(layout.rows_per_group() * padded(layout.problem().value_head_dim())),
        outputs(layout.block_rows() * padded(layout.problem().value_head_dim())),
        delta(layout.rows_per_group()),
        keys(layout.block_keys() * padded(layout.problem().head_dim())),
        transposed_keys(layout.problem().head_dim() * layout.tile_stride()),
        transposed_values(layout.problem().value_head_dim() * layout.tile_stride()),
        scores(layout.block_rows() * layout.tile_stride()),
        gradients(layout.block_rows() * layout.tile_stride()),
        key_gradients(layout.block_keys() * padded(layout.problem().head_dim())),
        value_gradients(layout.block_keys() * padded(layout.problem().value_head_dim())),
        rows(static_cast<size_t>(layout.block_rows())) {}

  Buffer<T> queries;                         // [rows of the group, D]
  Buffer<T> output_gradients;                // [rows of the group, Dv]
  Buffer<T> outputs;                         // [rows, Dv]
  Buffer<T> delta;                           // [rows of the group]
  Buffer<T> keys, transposed_keys;           // of a key block
  Buffer<T> transposed_values;               // of a key block
  Buffer<T> scores, gradients;               // [rows, tile_stride]
  Buffer<T> key_gradients, value_gradients;  // of a key block
  std::vector<QueryRow> rows;
  std::vector<Matrix<T>> query_blocks, gradient_blocks;  // by row block of the group
};

/// Of `largest` or `inverse_sum`.
template <typename T>
const T* block_statistics(const BackwardPass& pass, const at::Tensor& of_all,
                          const RowBlock& block) {
  const auto& problem = pass.problem();
  return of_all.template const_data_ptr<T>() +
         (block.batch * problem.groups() + block.group) * pass.layout.rows_per_group() +
         pass.layout.first_row(block);
}

/// The rows of a block that a tile's gradients are made of; `delta` is written.
template <typename T>
void prepare_block(const BackwardPass& pass, const RowBlock& block, int64_t first_row, T* delta,
                   Matrix<T>& queries, Matrix<T>& output_gradients, BackwardScratch<T>& scratch) {
  const auto& problem = pass.problem();
  const auto columns = problem.value_head_dim();
  queries = query_matrix(problem.query, block,
                         scratch.queries.data() + first_row * padded(problem.head_dim()));
  output_gradients = query_matrix(pass.output_gradient, block,
                                  scratch.output_gradients.data() + first_row * padded(columns));
  const auto outputs = query_matrix(pass.forward.output, block, scratch.outputs.data());
  matrix_kernels_of<T>().dot_rows(output_gradients.data, output_gradients.row, outputs.data,
                                  outputs.row, block.rows(), columns, delta);
}

template <typename T>
void prepare_group(const BackwardPass& pass, int64_t batch, int64_t group,
                   BackwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  scratch.query_blocks.resize(static_cast<size_t>(layout.blocks_per_group()));
  scratch.gradient_blocks.resize(static_cast<size_t>(layout.blocks_per_group()));
  for (int64_t n = 0; n < layout.blocks_per_group(); ++n) {
    const auto block = layout.block(batch, group, n);
    const auto first = layout.first_row(block);
    prepare_block(pass, block, first, scratch.delta.data() + first, scratch.query_blocks[n],
                  scratch.gradient_blocks[n], scratch);
  }
}

/// Weights and gradients of the scores of one tile, in scratch.
template <typename T>
void tile_gradients(const BackwardPass& pass, const RowBlock& block, const Matrix<T>& queries,
                    const Matrix<T>& output_gradients, const T* delta, KeyRange keys,
                    BackwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  const auto stride = layout.tile_stride();
  layout.describe_rows(block, scratch.rows.data());
  for_each_part(scratch.rows.data(), block.rows(), keys, [&](const TilePart& part) {
    const auto product = [&](const Matrix<T>& a, int64_t depth, const Buffer<T>& b, T* c) {
      matrix_kernels_of<T>().multiply({part.rows, padded(part.columns), depth,
                                       a.data + part.row * a.row, a.row, 1, b.data() + part.column,
                                       stride, c + part.row * stride + part.column, stride,
                                       /*accumulate=*/false});
    };
    product(queries, pass.problem().head_dim(), scratch.transposed_keys, scratch.scores.data());
    product(output_gradients, pass.problem().value_head_dim(), scratch.transposed_values,
            scratch.gradients.data());
  });
  score_kernels_of<T>().softmax_backward(
      {pass.format, scratch.rows.data(), block.rows(), keys.first, keys.last - keys.first,
       scratch.scores.data(), stride},
      block_statistics<T>(pass, pass.forward.largest, block),
      block_statistics<T>(pass, pass.forward.inverse_sum, block), delta, scratch.gradients.data());
}

template <typename T>
void add_tile(const BackwardPass& pass, const RowBlock& block, int64_t n, KeyRange keys,
              const Matrix<T>& key_rows, T* query_gradients, BackwardScratch<T>& scratch) {
  const auto& kernels = matrix_kernels_of<T>();
  const auto stride = pass.layout.tile_stride();
  const auto columns = padded(pass.problem().head_dim());
  const auto value_columns = padded(pass.problem().value_head_dim());
  const auto& queries = scratch.query_blocks[n];
  const auto& output_gradients = scratch.gradient_blocks[n];
  for_each_part(scratch.rows.data(), block.rows(), keys, [&](const TilePart& part) {
    const auto in_tile = part.row * stride + part.column;
    const T* weights = scratch.scores.data() + in_tile;
    const T* gradients = scratch.gradients.data() + in_tile;
    // Transposed by exchanging strides.
    if (pass.gradients.value.defined()) {
      kernels.multiply({part.columns, value_columns, part.rows, weights, 1, stride,
                        output_gradients.data + part.row * output_gradients.row,
                        output_gradients.row,
                        scratch.value_gradients.data() + part.column * value_columns, value_columns,
                        /*accumulate=*/true});
    }
    if (pass.gradients.key.defined()) {
      kernels.multiply({part.columns, columns, part.rows, gradients, 1, stride,
                        queries.data + part.row * queries.row, queries.row,
                        scratch.key_gradients.data() + part.column * columns, columns,
                        /*accumulate=*/true});
    }
    if (query_gradients != nullptr) {
      kernels.multiply({part.rows, columns, part.columns, gradients, stride, 1,
                        key_rows.data + part.column * key_rows.row, key_rows.row,
                        query_gradients + (pass.layout.first_row(block) + part.row) * columns,
                        columns, /*accumulate=*/true});
    }
  });
}

template <typename T>
void pack_keys(const BackwardPass& pass, int64_t batch, int64_t group, KeyRange keys,
               BackwardScratch<T>& scratch) {
  const auto& problem = pass.problem();
  const auto& kernels = matrix_kernels_of<T>();
  const auto stride = pass.layout.tile_stride();
  const auto count = keys.last - keys.first;
  kernels.pack_transposed(tensor_rows(problem.key, batch, group, keys.first, count),
                          static_cast<T>(problem.scale), scratch.transposed_keys.data(), stride);
  kernels.pack_transposed(tensor_rows(problem.value, batch, group, keys.first, count),
                          static_cast<T>(pass.kept_scale()), scratch.transposed_values.data(),
                          stride);
}

template <typename T>
void key_block_gradients(const BackwardPass& pass, int64_t batch, int64_t group, KeyRange keys,
                         T* query_gradients, BackwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  const auto& problem = pass.problem();
  const auto& kernels = matrix_kernels_of<T>();
  const auto count = keys.last - keys.first;
  const auto columns = padded(problem.head_dim());
  const auto value_columns = padded(problem.value_head_dim());
  pack_keys(pass, batch, group, keys, scratch);
  std::fill_n(scratch.key_gradients.data(), count * columns, T{0});
  std::fill_n(scratch.value_gradients.data(), count * value_columns, T{0});
  const auto key_rows =
      key_matrix(problem.key, layout.block(batch, group, 0), keys, scratch.keys.data());
  for (int64_t n = 0; n < layout.blocks_per_group(); ++n) {
    const auto block = layout.block(batch, group, n);
    const auto seen = layout.keys(block);
    if (seen.first >= keys.last || seen.last <= keys.first) continue;
    tile_gradients(pass, block, scratch.query_blocks[n], scratch.gradient_blocks[n],
                   scratch.delta.data() + layout.first_row(block), keys, scratch);
    add_tile(pass, block, n, keys, key_rows, query_gradients, scratch);
  }
  if (pass.gradients.key.defined()) {
    kernels.unpack(scratch.key_gradients.data(), columns, static_cast<T>(problem.scale), nullptr,
                   tensor_rows(pass.gradients.key, batch, group, keys.first, count));
  }
  if (pass.gradients.value.defined()) {
    kernels.unpack(scratch.value_gradients.data(), value_columns, static_cast<T>(pass.kept_scale()),
                   nullptr, tensor_rows(pass.gradients.value, batch, group, keys.first, count));
  }
}

template <typename T>
void run_gradients(const BackwardPass& pass, int64_t batch, int64_t group, int64_t run,
                   BackwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  prepare_group(pass, batch, group, scratch);
  T* query_gradients = nullptr;
  if (pass.query_parts.defined()) {
    const auto size = layout.rows_per_group() * padded(pass.problem().head_dim());
    const auto batch_group = batch * pass.problem().groups() + group;
    query_gradients =
        pass.query_parts.template mutable_data_ptr<T>() + (batch_group * pass.runs + run) * size;
    std::fill_n(query_gradients, size, T{0});
  }
  const auto first = layout.key_blocks() * run / pass.runs;
  const auto last = layout.key_blocks() * (run + 1) / pass.runs;
  for (auto n = first; n < last; ++n) {
    const auto key = n * layout.block_keys();
    const KeyRange keys{key, std::min(key + layout.block_keys(), pass.problem().key_length())};
    key_block_gradients(pass, batch, group, keys, query_gradients, scratch);
  }
}

/// Sums the runs' parts, into that of the first.
template <typename T>
void finish_query_gradients(const BackwardPass& pass, int64_t batch, int64_t head) {
  const auto& problem = pass.problem();
  const auto columns = padded(problem.head_dim());
  const auto length = problem.query_length();
  const auto heads_per_group = pass.layout.heads_per_group();
  const auto part = pass.layout.rows_per_group() * columns;
  const auto batch_group = batch * problem.groups() + head / heads_per_group;
  T* sum = pass.query_parts.template mutable_data_ptr<T>() + batch_group * pass.runs * part +
           head % heads_per_group * length * columns;
  for (int64_t run = 1; run < pass.runs; ++run) {
    matrix_kernels_of<T>().add(sum + run * part, length * columns, sum);
  }
  matrix_kernels_of<T>().unpack(sum, columns, static_cast<T>(problem.scale), nullptr,
                                tensor_rows(pass.gradients.query, batch, head, 0, length));
}

template <typename T>
void run(const BackwardPass& pass) {
  const auto& problem = pass.problem();
  const auto groups = problem.groups();
  const auto cost =
      multiply_adds(pass.layout, 3 * problem.head_dim() + 2 * problem.value_head_dim());
  run_tasks(problem.batch() * groups * pass.runs, cost, [&](TaskQueue& queue) {
    BackwardScratch<T> scratch(pass.layout);
    for (int64_t task = 0; queue.next(task);) {
      const auto batch_group = task / pass.runs;
      run_gradients(pass, batch_group / groups, batch_group % groups, task % pass.runs, scratch);
    }
  });
  if (!pass.gradients.query.defined()) return;
  run_tasks(problem.batch() * problem.heads(), cost, [&](TaskQueue& queue) {
    for (int64_t task = 0; queue.next(task);) {
      finish_query_gradients<T>(pass, task / problem.heads(), task % problem.heads());
    }
  });
}

/// The gradient of a bias that several heads, queries or batches share, block by block of the bias:
/// all that share it are visited in a fixed order, their scores computed once more.
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
    const auto cost = multiply_adds(pass_.layout, problem.head_dim() + problem.value_head_dim());
    run_tasks(tasks, cost, [&](TaskQueue& queue) {
      BackwardScratch<T> scratch(pass_.layout);
      const Buffer<T> sums(block_queries_ * pass_.layout.tile_stride());
      for (int64_t task = 0; queue.next(task);) {
        const auto key = task % key_blocks * pass_.layout.block_keys();
        const auto rest = task / key_blocks;
        const auto query_block = rest % query_blocks_;
        const auto head = rest / query_blocks_ % gradient_.size(1);
        const auto batch = rest / query_blocks_ / gradient_.size(1);
        const auto last = std::min(key + pass_.layout.block_keys(), problem.key_length());
        sum_block(batch, head, query_block, {key, last}, sums.data(), scratch);
      }
    });
  }

 private:
  /// All indices where the bias is broadcast, else the one given.
  KeyRange indices(int64_t dim, int64_t index, int64_t size) const {
    return gradient_.size(dim) == 1 ? KeyRange{0, size} : KeyRange{index, index + 1};
  }

  void sum_block(int64_t bias_batch, int64_t bias_head, int64_t query_block, KeyRange keys, T* sums,
                 BackwardScratch<T>& scratch) const {
    const auto& problem = pass_.problem();
    const bool each_query = gradient_.size(2) > 1;
    const auto first = each_query ? query_block * block_queries_ : 0;
    const auto last = each_query ? std::min(first + block_queries_, problem.query_length())
                                 : problem.query_length();
    const auto sum_rows = each_query ? last - first : 1;
    const auto width = keys.last - keys.first;
    std::fill_n(sums, sum_rows * width, T{0});
    const auto batches = indices(0, bias_batch, problem.batch());
    const auto heads = indices(1, bias_head, problem.heads());
    for (auto batch = batches.first; batch < batches.last; ++batch) {
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
                BackwardScratch<T>& scratch) const {
    const auto seen = pass_.layout.keys(block);
    if (seen.first >= keys.last || seen.last <= keys.first) return;
    Matrix<T> queries, output_gradients;
    prepare_block(pass_, block, 0, scratch.delta.data(), queries, output_gradients, scratch);
    tile_gradients(pass_, block, queries, output_gradients, scratch.delta.data(), keys, scratch);
    const auto width = keys.last - keys.first;
    for (int64_t r = 0; r < block.queries; ++r) {
      matrix_kernels_of<T>().add(scratch.gradients.data() + r * pass_.layout.tile_stride(), width,
                                 each_query ? sums + r * width : sums);
    }
  }

  /// A bias is added behind the softcap.
  static BackwardPass of_bias(BackwardPass pass) {
    pass.format.through_softcap = false;
    return pass;
  }

  const BackwardPass pass_;
  const at::Tensor& gradient_;  // shaped as the bias, contiguous
  int64_t block_queries_, query_blocks_;
};

template <typename T>
void run_all(const BackwardPass& pass) {
  const auto& gradients = pass.gradients;
  if (gradients.query.defined() || gradients.key.defined() || gradients.value.defined()) {
    run<T>(pass);
  }
  if (gradients.bias.defined()) BiasGradient<T>(pass, gradients.bias).run();
}

/// A sink is a key of value 0.
at::Tensor sink_gradients(const BackwardPass& pass) {
  const auto& largest = pass.forward.largest;  // [B, H, L]
  const auto dtype = largest.scalar_type();
  const auto delta = (pass.output_gradient.to(dtype) * pass.forward.output.to(dtype)).sum(3);
  const auto& sinks = pass.problem().sinks;
  const auto weights = (sinks.view({1, -1, 1}) - largest).exp() * pass.forward.inverse_sum;
  return (weights * delta).sum(at::IntArrayRef{0, 2}).neg();
}

}  // namespace

BlockGradients block_backward(const Problem& problem, uint64_t dropout_key,
                              const BlockOutput& forward, const at::Tensor& output_gradient,
                              const WantedGradients& wanted) {
  BlockGradients gradients;
  const auto allocate = [&](const at::Tensor& like, bool is_wanted) {
    return is_wanted ? at::empty_like(like) : at::Tensor();
  };
  gradients.query = allocate(problem.query, wanted[0]);
  gradients.key = allocate(problem.key, wanted[1]);
  gradients.value = allocate(problem.value, wanted[2]);
  const BlockLayout layout(problem);
  BackwardPass pass{layout,    layout.score_format(dropout_key), forward, output_gradient,
                    gradients, runs_per_group(layout),           {}};
  if (wanted[0]) {
    pass.query_parts = at::empty({problem.batch() * problem.groups(), pass.runs,
                                  layout.rows_per_group(), padded(problem.head_dim())},
                                 forward.largest.options());
  }
  if (wanted[3]) gradients.bias = at::empty(problem.bias.sizes(), problem.bias.options());
  problem.query.scalar_type() == at::kDouble ? run_all<double>(pass) : run_all<float>(pass);
  if (wanted[4]) gradients.sinks = sink_gradients(pass);
  return gradients;
}

}  // namespace heed::detail
