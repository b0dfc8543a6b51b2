#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <thread>

#include "cpu/block/layout.h"

namespace heed::detail {

namespace {

/// A task is one group and one of its key blocks, whose key and value gradients it finishes. What
/// it adds to query gradients it adds in its turn, so that no sum depends on the number of threads.
struct BackwardPass {
  const BlockLayout& layout;
  ScoreFormat format;
  const BlockOutput& forward;
  const at::Tensor& output_gradient;
  BlockGradients& gradients;
  // [B, H, L]: the sum over keys of weight times its gradient, less the gradient of the lse
  at::Tensor delta;
  at::Tensor query_sums;  // [B, H, L, D padded], the query gradients' own memory where it can be
  const at::Tensor& lse_gradient;  // [B, H, L], or undefined

  const Problem& problem() const { return layout.problem(); }
  double kept_scale() const { return 1 / (1 - problem().dropout); }
};

template <typename T>
struct BackwardScratch {
  explicit BackwardScratch(const BlockLayout& layout)
      : queries(layout.block_rows() * padded(layout.problem().head_dim())),
        output_gradients(layout.block_rows() * padded(layout.problem().value_head_dim())),
        keys(layout.block_keys() * padded(layout.problem().head_dim())),
        transposed_keys(layout.problem().head_dim() * layout.tile_stride()),
        transposed_values(layout.problem().value_head_dim() * layout.tile_stride()),
        scores(layout.block_rows() * layout.tile_stride()),
        gradients(layout.block_rows() * layout.tile_stride()),
        key_gradients(layout.block_keys() * padded(layout.problem().head_dim())),
        value_gradients(layout.block_keys() * padded(layout.problem().value_head_dim())),
        rows(static_cast<size_t>(layout.block_rows())) {}

  Buffer<T> queries;                         // [rows, D]
  Buffer<T> output_gradients;                // [rows, Dv]
  Buffer<T> keys, transposed_keys;           // of a key block
  Buffer<T> transposed_values;               // of a key block
  Buffer<T> scores, gradients;               // [rows, tile_stride]
  Buffer<T> key_gradients, value_gradients;  // of a key block
  std::vector<QueryRow> rows;
};

/// Of `largest`, `inverse_sum` or `delta`.
template <typename T>
const T* block_statistics(const BackwardPass& pass, const at::Tensor& of_all,
                          const RowBlock& block) {
  return of_all.template const_data_ptr<T>() + pass.layout.first_row(block);
}

/// What a tile's gradients are made of beside keys and values.
template <typename T>
struct TileRows {
  RowBlock block;
  Matrix<T> queries, output_gradients;
};

template <typename T>
TileRows<T> tile_rows(const BackwardPass& pass, const RowBlock& block,
                      const BackwardScratch<T>& scratch) {
  return {block, query_matrix(pass.problem().query, block, scratch.queries.data()),
          query_matrix(pass.output_gradient, block, scratch.output_gradients.data())};
}

template <typename T>
void compute_delta(const BackwardPass& pass) {
  const auto& layout = pass.layout;
  const auto columns = pass.problem().value_head_dim();
  const auto cost = static_cast<double>(pass.delta.numel() * columns);
  run_tasks(layout.blocks(), cost, [&](TaskQueue& queue) {
    const auto size = layout.block_rows() * padded(columns);
    const Buffer<T> gradient_rows(size), output_rows(size), of_rest(layout.block_rows());
    for (int64_t task = 0; queue.next(task);) {
      const auto block = layout.block(task);
      const auto gradients = query_matrix(pass.output_gradient, block, gradient_rows.data());
      const auto dot_rows = [&](const at::Tensor& outputs, T* to) {
        const auto rows = query_matrix(outputs, block, output_rows.data());
        matrix_kernels_of<T>().dot_rows(gradients.data, gradients.row, rows.data, rows.row,
                                        block.rows(), columns, to);
      };
      T* delta = pass.delta.template mutable_data_ptr<T>() + layout.first_row(block);
      dot_rows(pass.forward.output, delta);
      if (!pass.forward.output_rest.defined()) continue;
      dot_rows(pass.forward.output_rest, of_rest.data());
      matrix_kernels_of<T>().add(of_rest.data(), block.rows(), delta);
    }
  });
}

/// Weights and gradients of the scores of one tile, in scratch.
template <typename T>
void tile_gradients(const BackwardPass& pass, const TileRows<T>& rows, KeyRange keys,
                    BackwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  const auto& block = rows.block;
  const auto stride = layout.tile_stride();
  layout.describe_rows(block, scratch.rows.data());
  for_each_part(scratch.rows.data(), block.rows(), keys, [&](const TilePart& part) {
    const auto product = [&](const Matrix<T>& a, int64_t depth, const Buffer<T>& b, T* c) {
      matrix_kernels_of<T>().multiply({part.rows, padded(part.columns), depth,
                                       a.data + part.row * a.row, a.row, 1, b.data() + part.column,
                                       stride, c + part.row * stride + part.column, stride,
                                       /*accumulate=*/false});
    };
    product(rows.queries, pass.problem().head_dim(), scratch.transposed_keys,
            scratch.scores.data());
    product(rows.output_gradients, pass.problem().value_head_dim(), scratch.transposed_values,
            scratch.gradients.data());
  });
  score_kernels_of<T>().softmax_backward(
      {pass.format, scratch.rows.data(), block.rows(), keys.first, keys.last - keys.first,
       scratch.scores.data(), stride},
      block_statistics<T>(pass, pass.forward.largest, block),
      block_statistics<T>(pass, pass.forward.inverse_sum, block),
      block_statistics<T>(pass, pass.delta, block), scratch.gradients.data());
}

/// Adds a tile to the gradients of its keys and values.
template <typename T>
void add_to_keys(const BackwardPass& pass, const TileRows<T>& rows, KeyRange keys,
                 BackwardScratch<T>& scratch) {
  const auto stride = pass.layout.tile_stride();
  for_each_part(scratch.rows.data(), rows.block.rows(), keys, [&](const TilePart& part) {
    const auto add = [&](const Buffer<T>& tile, const Matrix<T>& b, int64_t columns, T* sums) {
      // Transposed by exchanging strides.
      matrix_kernels_of<T>().multiply(
          {part.columns, columns, part.rows, tile.data() + part.row * stride + part.column, 1,
           stride, b.data + part.row * b.row, b.row, sums + part.column * columns, columns,
           /*accumulate=*/true});
    };
    if (pass.gradients.value.defined()) {
      add(scratch.scores, rows.output_gradients, padded(pass.problem().value_head_dim()),
          scratch.value_gradients.data());
    }
    if (pass.gradients.key.defined()) {
      add(scratch.gradients, rows.queries, padded(pass.problem().head_dim()),
          scratch.key_gradients.data());
    }
  });
}

/// Adds a tile to the gradients of its queries.
template <typename T>
void add_to_queries(const BackwardPass& pass, const RowBlock& block, KeyRange keys,
                    const Matrix<T>& key_rows, const BackwardScratch<T>& scratch) {
  const auto stride = pass.layout.tile_stride();
  const auto columns = pass.query_sums.size(3);
  T* sums = pass.query_sums.template mutable_data_ptr<T>() + pass.layout.first_row(block) * columns;
  for_each_part(scratch.rows.data(), block.rows(), keys, [&](const TilePart& part) {
    matrix_kernels_of<T>().multiply({part.rows, columns, part.columns,
                                     scratch.gradients.data() + part.row * stride + part.column,
                                     stride, 1, key_rows.data + part.column * key_rows.row,
                                     key_rows.row, sums + part.row * columns, columns,
                                     /*accumulate=*/true});
  });
}

template <typename T>
void pack_keys(const BackwardPass& pass, int64_t batch, int64_t group, KeyRange keys,
               const BackwardScratch<T>& scratch) {
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
void write_key_gradients(const BackwardPass& pass, int64_t batch, int64_t group, KeyRange keys,
                         const BackwardScratch<T>& scratch) {
  const auto write = [&](const Buffer<T>& sums, double factor, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    const auto rows = tensor_rows(gradient, batch, group, keys.first, keys.last - keys.first);
    matrix_kernels_of<T>().unpack(sums.data(), padded(rows.columns), static_cast<T>(factor),
                                  nullptr, rows);
  };
  write(scratch.key_gradients, pass.problem().scale, pass.gradients.key);
  write(scratch.value_gradients, pass.kept_scale(), pass.gradients.value);
}

/// How many key blocks have added to the query gradients of each row block.
using AddedBlocks = std::vector<std::atomic<int64_t>>;

template <typename T>
void key_block_gradients(const BackwardPass& pass, int64_t batch, int64_t group, int64_t key_block,
                         AddedBlocks& added, BackwardScratch<T>& scratch) {
  const auto& layout = pass.layout;
  const auto& problem = pass.problem();
  const auto keys = layout.key_block(key_block);
  const auto count = keys.last - keys.first;
  pack_keys(pass, batch, group, keys, scratch);
  std::fill_n(scratch.key_gradients.data(), count * padded(problem.head_dim()), T{0});
  std::fill_n(scratch.value_gradients.data(), count * padded(problem.value_head_dim()), T{0});
  const auto first = (batch * problem.groups() + group) * layout.blocks_per_group();
  const auto key_rows = key_matrix(problem.key, layout.block(first), keys, scratch.keys.data());
  // From the last, which causal hides from no key block: each follows the one before it at once.
  for (auto n = first + layout.blocks_per_group() - 1; n >= first; --n) {
    const auto block = layout.block(n);
    const auto seen = layout.keys(block);
    if (seen.first >= keys.last || seen.last <= keys.first) continue;
    const auto rows = tile_rows(pass, block, scratch);
    tile_gradients(pass, rows, keys, scratch);
    add_to_keys(pass, rows, keys, scratch);
    if (!pass.query_sums.defined()) continue;
    auto& count_added = added[static_cast<size_t>(n)];
    // A task that is waited for was taken before, and waits only for earlier ones.
    while (count_added.load(std::memory_order_acquire) !=
           key_block - seen.first / layout.block_keys()) {
      std::this_thread::yield();
    }
    add_to_queries(pass, block, keys, key_rows, scratch);
    count_added.fetch_add(1, std::memory_order_release);
  }
  write_key_gradients(pass, batch, group, keys, scratch);
}

template <typename T>
void write_query_gradients(const BackwardPass& pass) {
  const auto& problem = pass.problem();
  const auto columns = pass.query_sums.size(3);
  const auto length = problem.query_length();
  const auto cost = static_cast<double>(pass.query_sums.numel());
  run_tasks(problem.batch() * problem.heads(), cost, [&](TaskQueue& queue) {
    for (int64_t head = 0; queue.next(head);) {
      matrix_kernels_of<T>().unpack(
          pass.query_sums.template const_data_ptr<T>() + head * length * columns, columns,
          static_cast<T>(problem.scale), nullptr,
          tensor_rows(pass.gradients.query, head / problem.heads(), head % problem.heads(), 0,
                      length));
    }
  });
}

template <typename T>
void run(const BackwardPass& pass) {
  const auto& problem = pass.problem();
  const auto& layout = pass.layout;
  const auto key_blocks = layout.key_blocks();
  const auto cost = multiply_adds(layout, 3 * problem.head_dim() + 2 * problem.value_head_dim());
  AddedBlocks added(static_cast<size_t>(layout.blocks()));
  run_tasks(problem.batch() * problem.groups() * key_blocks, cost, [&](TaskQueue& queue) {
    BackwardScratch<T> scratch(layout);
    for (int64_t task = 0; queue.next(task);) {
      const auto group = task / key_blocks;
      key_block_gradients(pass, group / problem.groups(), group % problem.groups(),
                          task % key_blocks, added, scratch);
    }
  });
  if (pass.query_sums.defined()) write_query_gradients<T>(pass);
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
    tile_gradients(pass_, tile_rows(pass_, block, scratch), keys, scratch);
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
  compute_delta<T>(pass);
  if (pass.lse_gradient.defined()) pass.delta.sub_(pass.lse_gradient);
  if (gradients.query.defined() || gradients.key.defined() || gradients.value.defined()) {
    run<T>(pass);
  }
  if (gradients.bias.defined()) BiasGradient<T>(pass, gradients.bias).run();
}

/// A sink is a key of value 0.
at::Tensor sink_gradients(const BackwardPass& pass) {
  const auto& sinks = pass.problem().sinks;
  const auto weights =
      (sinks.view({1, -1, 1}) - pass.forward.largest).exp() * pass.forward.inverse_sum;
  return (weights * pass.delta).sum(at::IntArrayRef{0, 2}).neg();
}

/// Zeros [B, H, L, D padded] of the type computed in.
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
        like, problem.part ? like.options().dtype(problem.result_dtype()) : like.options());
  };
  gradients.query = allocate(problem.query, wanted[0]);
  gradients.key = allocate(problem.key, wanted[1]);
  gradients.value = allocate(problem.value, wanted[2]);
  if (wanted[3]) gradients.bias = at::empty(problem.bias.sizes(), problem.bias.options());
  const BlockLayout layout(problem);
  BackwardPass pass{layout,    layout.score_format(dropout_key), forward, output_gradient,
                    gradients, at::empty_like(forward.largest),  {},      lse_gradient};
  const auto computed_in = forward.largest.scalar_type();
  if (wanted[0]) pass.query_sums = make_query_sums(problem, computed_in, gradients.query);
  computed_in == at::kDouble ? run_all<double>(pass) : run_all<float>(pass);
  if (wanted[4]) gradients.sinks = sink_gradients(pass);
  return gradients;
}

}  // namespace heed::detail
