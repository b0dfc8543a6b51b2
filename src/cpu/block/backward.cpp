#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <thread>

#include "cpu/block/products.h"

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

/// One worker's memory. Operand is what products are made of: T, or BFloat16Pair.
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

/// Of `largest`, `inverse_sum` or `delta`.
template <typename T>
const T* block_statistics(const BackwardPass& pass, const at::Tensor& of_all,
                          const RowBlock& block) {
  return of_all.template const_data_ptr<T>() + pass.layout.first_row(block);
}

/// What a tile's gradients are made of beside keys and values.
template <typename Operand>
struct TileRows {
  RowBlock block;
  Matrix<Operand> queries, output_gradients;            // for sums over columns
  Matrix<Operand> deep_queries, deep_output_gradients;  // for sums over rows
};

/// The same numbers in pairs of rows, if they are in pairs.
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

/// A row that sees nothing has an output of 0, whatever its gradient is.
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

/// Weights and gradients of the scores of the tile, in scratch.
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

/// What `softmax_backward` made of a tile, for sums over its rows.
template <typename Operand>
struct TileOfRows {
  const Operand* data;
  int64_t row;  // to the next row of operands
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

/// Adds the tile, transposed, times `rows` to sums [keys, columns]. `tensor` is what the rows are
/// of; `copy` is memory for them.
template <typename T, typename Operand>
void add_to_keys(const BackwardPass& pass, const TileOfRows<Operand>& tile_data,
                 Matrix<Operand> rows, const at::Tensor& tensor, const Buffer<Operand>& copy,
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
    // Transposed by exchanging strides.
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
          if (!sees(tile.row(r), pass.format, tile.keys().first + n)) continue;
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
    add_to_keys(pass, weights_of_rows(pass.layout, scratch), rows.deep_output_gradients,
                pass.output_gradient,
                kInPairs ? scratch.deep_output_gradients : scratch.output_gradients, scratch,
                scratch.value_gradients.data());
  }
  if (pass.gradients.key.defined()) {
    add_to_keys(pass, gradients_of_rows(pass.layout, scratch), rows.deep_queries,
                pass.problem().query, kInPairs ? scratch.deep_queries : scratch.queries, scratch,
                scratch.key_gradients.data());
  }
}

/// Adds the tile to the gradients of its queries.
template <typename T, typename Operand>
void add_to_queries(const BackwardPass& pass, const KeyRows<Operand>& keys,
                    BackwardScratch<T, Operand>& scratch) {
  auto& tile = scratch.tile;
  const auto first = pass.layout.first_row(tile.block()) * pass.query_sums.size(3);
  add_over_keys(tile, pass.format, reinterpret_cast<const Operand*>(scratch.gradients.data()),
                pass.layout.tile_stride(), keys, kQuerySumKeys,
                pass.query_sums.template mutable_data_ptr<T>() + first);
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

/// For each block of queries, the block of keys that is the next to add to its gradients.
class Turns {
 public:
  explicit Turns(const BlockLayout& layout)
      : layout_(layout), next_(static_cast<size_t>(layout.blocks())) {
    for (int64_t n = 0; n < layout.blocks(); ++n) next_[static_cast<size_t>(n)] = seen_from(n, 0);
  }

  void wait(int64_t block, int64_t key_block) const {
    // A task that is waited for was taken before, and waits only for earlier ones.
    while (next_[static_cast<size_t>(block)].load(std::memory_order_acquire) != key_block) {
      std::this_thread::yield();
    }
  }
  void pass_on(int64_t block, int64_t key_block) {
    next_[static_cast<size_t>(block)].store(seen_from(block, key_block + 1),
                                            std::memory_order_release);
  }

 private:
  int64_t seen_from(int64_t n, int64_t key_block) const {
    const auto block = layout_.block(n);
    const auto first = layout_.keys(block).first / layout_.block_keys();
    key_block = std::max(key_block, first);
    while (key_block < layout_.key_blocks() &&
           !layout_.may_see(block, layout_.key_block(key_block))) {
      ++key_block;
    }
    return key_block;
  }

  const BlockLayout& layout_;
  std::vector<std::atomic<int64_t>> next_;
};

template <typename T, typename Operand>
void key_block_gradients(const BackwardPass& pass, int64_t batch, int64_t group, int64_t key_block,
                         Turns& turns, BackwardScratch<T, Operand>& scratch) {
  const auto& layout = pass.layout;
  const auto& problem = pass.problem();
  const auto keys = layout.key_block(key_block);
  const auto count = keys.last - keys.first;
  pack_keys(pass, batch, group, keys, scratch);
  std::fill_n(scratch.key_gradients.data(), count * padded(problem.head_dim()), T{0});
  std::fill_n(scratch.value_gradients.data(), count * padded(problem.value_head_dim()), T{0});
  const auto first = (batch * problem.groups() + group) * layout.blocks_per_group();
  KeyRows<Operand> key_rows{
      problem.key, key_matrix(problem.key, layout.block(first), keys, scratch.keys.data()), false};
  key_rows.took_some =
      problem.may_hide() && take_non_finite(key_rows.matrix, operands<Operand>(count),
                                            problem.head_dim(), scratch.keys.data());
  // From the last, which causal hides from no key block: each follows the one before it at once.
  for (auto n = first + layout.blocks_per_group() - 1; n >= first; --n) {
    const auto block = layout.block(n);
    if (!layout.may_see(block, keys)) continue;
    scratch.tile.set_rows(block);
    const bool sees = scratch.tile.set_keys(keys);
    if (sees) {
      const auto rows = tile_rows(pass, block, scratch);
      tile_gradients(pass, rows, scratch);
      add_to_key_gradients(pass, rows, scratch);
    }
    if (!pass.query_sums.defined()) continue;
    turns.wait(n, key_block);
    if (sees) add_to_queries(pass, key_rows, scratch);
    turns.pass_on(n, key_block);
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

template <typename T, typename Operand>
void run(const BackwardPass& pass) {
  const auto& layout = pass.layout;
  Turns turns(layout);
  run_tasks(layout.tasks(), layout.multiply_adds(), [&](TaskQueue& queue) {
    BackwardScratch<T, Operand> scratch(layout);
    for (int64_t n = 0; queue.next(n);) {
      const auto task = layout.key_task(n);
      key_block_gradients(pass, task.batch, task.group, task.key_block, turns, scratch);
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
    const auto cost = multiply_adds(problem, problem.head_dim() + problem.value_head_dim());
    run_tasks(tasks, cost, [&](TaskQueue& queue) {
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
  /// All indices where the bias is broadcast, else the one given.
  KeyRange indices(int64_t dim, int64_t index, int64_t size) const {
    return gradient_.size(dim) == 1 ? KeyRange{0, size} : KeyRange{index, index + 1};
  }

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

  /// A bias is added behind the softcap.
  static BackwardPass of_bias(BackwardPass pass) {
    pass.format.through_softcap = false;
    return pass;
  }

  const BackwardPass pass_;
  const at::Tensor& gradient_;  // shaped as the bias, contiguous
  int64_t block_queries_, query_blocks_;
};

template <typename T, typename Operand = T>
void run_all(const BackwardPass& pass) {
  const auto& gradients = pass.gradients;
  compute_delta<T>(pass);
  if (pass.lse_gradient.defined()) pass.delta.sub_(pass.lse_gradient);
  if (gradients.query.defined() || gradients.key.defined() || gradients.value.defined()) {
    run<T, Operand>(pass);
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
  const BlockLayout layout(problem, LayoutUse::backward);
  BackwardPass pass{layout,    layout.score_format(dropout_key), forward, output_gradient,
                    gradients, at::empty_like(forward.largest),  {},      lse_gradient};
  const auto computed_in = forward.largest.scalar_type();
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
  return gradients;
}

}  // namespace heed::detail
