// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/core/functional.h>

#include <algorithm>
#include <memory>

#include "core/ceil_div.h"
#include "cpu/capability.h"
#include "cpu/isa/matrix.h"
#include "cpu/layers/dense.h"
#include "cpu/layers/linear.h"
#include "cpu/layers/linear_outputs.h"
#include "cpu/tensor_rows.h"

// input weight^T + bias of several layers with one input. Each output is cut into rectangles, one
// for each thread:
//
//   for each thread, in parallel:
//     for each layer, the thread's rectangle of the output:
//       for 256 numbers of the depth at a time:
//         b [256, columns] = weight[columns, 256]^T
//         for 96 rows at a time:
//           output[rows, columns] += input[rows, 256] b              # cpu/isa/matrix.cpp
//
//   weight by rows         columns: packed, for each thread anew
//   weight by columns      b lies in memory as the product wants it: a gradient's transposed views
//   input by columns       the product reads 6 neighbors for each number of the depth
//
// 256 rows of a panel of b take 64 KB, which stay in the L2 cache, from which the product reads
// them for each 6 rows of the input. The multiply units bound it. docs/kernels.md, Projections.

namespace heed::detail {

namespace {

constexpr int64_t kDepthRun = 256;
constexpr int64_t kBlockRows = 96;
constexpr int64_t kWidestPanel = 64;  // the widest panel of a product
static_assert(kBlockRows % kMicroRows == 0);

struct Range {
  int64_t first, end;
  int64_t size() const { return end - first; }
};

/// Range number `index` of `count` into which [0, size) is cut at multiples of `multiple`.
Range range_of(int64_t size, int64_t multiple, int64_t count, int64_t index) {
  const auto each = round_up(ceil_div(size, count), multiple);
  return {std::min(size, index * each), std::min(size, (index + 1) * each)};
}

/// The addresses and strides of one layer's product.
struct LayerProduct {
  LayerProduct(const at::Tensor& input, const LinearParameters& layer, const at::Tensor& output)
      : weight(layer.weight),
        bias(layer.bias.defined() ? layer.bias.const_data_ptr<float>() : nullptr),
        a(input.const_data_ptr<float>()),
        c(output.mutable_data_ptr<float>()),
        depth(weight.size(1)),
        rows(input.numel() / depth),
        columns(weight.size(0)),
        a_row(input.is_contiguous() ? depth : 1),
        a_column(input.is_contiguous() ? 1 : input.stride(1)) {}

  /// Whether the input's columns are contiguous, and not its rows.
  bool is_by_columns() const { return a_column != 1; }

  /// Whether each thread has to pack the weight.
  bool packs() const { return weight.stride(0) != 1; }

  at::Tensor weight;
  const float* bias;
  const float* a;
  float* c;
  int64_t depth, rows, columns;
  int64_t a_row, a_column;
};

/// How the output is cut for threads: into rows, and those into columns.
struct Cut {
  int64_t rows, columns;
};

/// The cut into at most `threads` rectangles whose largest one takes the least time.
Cut cut_for(const LayerProduct& layer, int64_t threads) {
  constexpr int64_t kPackedRows = 48;   // rows of the input that take as long as packing
  constexpr int64_t kReadColumns = 16;  // columns of b that take as long as reading a by columns
  Cut best{1, 1};
  int64_t least = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const Cut cut{rows, threads / rows};
    const auto of_rows = range_of(layer.rows, kMicroRows, cut.rows, 0).size();
    const auto of_columns = range_of(layer.columns, kWidestPanel, cut.columns, 0).size();
    const auto time = of_rows * of_columns + (layer.packs() ? kPackedRows * of_columns : 0) +
                      (layer.is_by_columns() ? kReadColumns * of_rows : 0);
    if (rows == 1 || time < least) {
      least = time;
      best = cut;
    }
  }
  return best;
}

/// The product of some rows and columns of a layer's output.
class Rectangle {
 public:
  Rectangle(const LayerProduct& layer, Range rows, Range columns)
      : layer_(layer), rows_(rows), columns_(columns) {}

  /// Computes the output, or adds to it.
  void compute(bool accumulate) const {
    if (layer_.bias != nullptr && !accumulate) copy_bias();
    const bool adds = accumulate || layer_.bias != nullptr;
    // The kernel writes whole vectors, so that the last columns need memory of their own.
    const auto whole = columns_.first + columns_.size() / kColumnMultiple * kColumnMultiple;
    if (whole > columns_.first) {
      auto* c = layer_.c + rows_.first * layer_.columns + columns_.first;
      multiply({columns_.first, whole}, c, layer_.columns, adds);
    }
    if (whole < columns_.end) multiply_last({whole, columns_.end}, adds);
  }

 private:
  void copy_bias() const {
    for (auto r = rows_.first; r < rows_.end; ++r) {
      std::copy(layer_.bias + columns_.first, layer_.bias + columns_.end,
                layer_.c + r * layer_.columns + columns_.first);
    }
  }

  /// Multiplies fewer than kColumnMultiple columns.
  void multiply_last(Range columns, bool adds) const {
    const auto products =
        std::make_unique<float[]>(static_cast<size_t>(rows_.size() * kColumnMultiple));
    multiply(columns, products.get(), kColumnMultiple, false);
    for (auto r = rows_.first; r < rows_.end; ++r) {
      const auto* from = products.get() + (r - rows_.first) * kColumnMultiple;
      auto* to = layer_.c + r * layer_.columns + columns.first;
      for (int64_t i = 0; i < columns.size(); ++i) to[i] = adds ? to[i] + from[i] : from[i];
    }
  }

  /// Multiplies these columns. The first row of the rectangle is written to c, and the rows lie
  /// c_row apart.
  void multiply(Range columns, float* c, int64_t c_row, bool adds) const {
    const auto& kernels = instruction_set().matrix.of_float;
    const auto width = round_up(columns.size(), kColumnMultiple);
    const bool packs = layer_.packs() || width != columns.size();
    const auto size = packs ? std::min(kDepthRun, layer_.depth) * width : 0;
    const std::unique_ptr<float[]> packed(new float[static_cast<size_t>(size)]);
    for (int64_t first = 0; first < layer_.depth; first += kDepthRun) {
      const auto depth = std::min(kDepthRun, layer_.depth - first);
      if (packs) pack(columns, first, depth, packed.get(), width);
      const auto b_row = packs ? width : layer_.weight.stride(1);
      const auto* b = packs ? packed.get()
                            : layer_.weight.const_data_ptr<float>() + first * b_row + columns.first;
      for (auto row = rows_.first; row < rows_.end; row += kBlockRows) {
        const auto* a = layer_.a + row * layer_.a_row + first * layer_.a_column;
        kernels.multiply({std::min(kBlockRows, rows_.end - row), width, depth, a, layer_.a_row,
                          layer_.a_column, b, b_row, c + (row - rows_.first) * c_row, c_row,
                          /*accumulate=*/adds || first > 0});
      }
    }
  }

  /// Packs columns of b, which are rows of the weight.
  void pack(Range columns, int64_t first, int64_t depth, float* to, int64_t to_row) const {
    const auto& kernels = instruction_set().matrix.of_float;
    const auto& weight = layer_.weight;
    const auto offset = columns.first * weight.stride(0) + first * weight.stride(1);
    if (layer_.packs()) {
      auto rows = rows_at(weight, offset, columns.size(), weight.stride(0));
      rows.columns = depth;
      return kernels.pack_transposed(rows, 1.0F, to, to_row);
    }
    auto rows = rows_at(weight.t(), offset, depth, weight.stride(1));
    rows.columns = columns.size();
    kernels.pack(rows, to, to_row);
  }

  const LayerProduct& layer_;
  const Range rows_, columns_;
};

/// How many threads the products are worth.
int64_t threads_for(const std::vector<LayerProduct>& layers) {
  constexpr int64_t kMultiplyAdds = 1 << 19;  // as many as are worth a thread
  int64_t work = 0;
  for (const auto& layer : layers) work += layer.rows * layer.columns * layer.depth;
  return std::clamp<int64_t>(work / kMultiplyAdds, 1, at::get_num_threads());
}

void compute_products(const std::vector<LayerProduct>& layers, bool accumulate) {
  const auto threads = threads_for(layers);
  const auto cuts = c10::fmap(layers, [&](const auto& layer) { return cut_for(layer, threads); });
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (auto thread = begin; thread < end; ++thread) {
      for (size_t i = 0; i < layers.size(); ++i) {
        const auto& layer = layers[i];
        const auto& cut = cuts[i];
        if (thread >= cut.rows * cut.columns) continue;
        const auto rows = range_of(layer.rows, kMicroRows, cut.rows, thread / cut.columns);
        const auto columns =
            range_of(layer.columns, kWidestPanel, cut.columns, thread % cut.columns);
        if (rows.size() > 0 && columns.size() > 0) {
          Rectangle(layer, rows, columns).compute(accumulate);
        }
      }
    }
  });
}

/// The input, if its rows or its columns are contiguous; else a copy.
at::Tensor in_rows_or_columns(const at::Tensor& input) {
  return input.dim() == 2 && input.stride(0) == 1 ? input : dense(input);
}

}  // namespace

std::vector<at::Tensor> linear_in_blocks(const at::Tensor& input,
                                         const std::vector<LinearParameters>& layers) {
  const auto from = in_rows_or_columns(input);
  auto outputs = empty_outputs(input, layers);
  std::vector<LayerProduct> products;
  products.reserve(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) products.emplace_back(from, layers[i], outputs[i]);
  compute_products(products, /*accumulate=*/false);
  return outputs;
}

void add_linear_in_blocks(const at::Tensor& input, const at::Tensor& weight,
                          const at::Tensor& sum) {
  compute_products({{in_rows_or_columns(input), {weight, {}}, sum}}, /*accumulate=*/true);
}

}  // namespace heed::detail
