// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/swiglu_layer.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "core/plain.h"
#include "cpu/capability.h"
#include "cpu/isa/matrix.h"
#include "cpu/layers/packed_weight.h"
#include "cpu/tensor_rows.h"

// A SwiGLU layer of T rows on one thread: y = h out^T, h = swiglu(x gate^T, x up^T). A mixture runs
// such a layer for each expert, whose rows are too few to pay for sorting three weights into
// panels. So the hidden layer is computed transposed: the weights are multiplied as they lie in
// memory, by a panel of packed rows of x, and h is then the next product's operand:
//
//   b_out = out^T, packed
//   for each panel of 64 rows:
//     b = x[panel]^T, packed
//     for 64 hidden features f at a time:
//       gate^T [f, panel] = gate[f] b,  up^T [f, panel] = up[f] b        # cpu/isa/matrix.cpp
//       h^T [f, panel] = swiglu(gate^T, up^T)                            # cpu/isa/layers.cpp
//     y[panel] = h b_out
//
//   backward:
//   for each panel of 64 rows:
//     b = dy[panel]^T, packed
//     for 64 hidden features f at a time:
//       dh^T = out^T[f] b;  dgate^T, dup^T, h^T [f, panel] of gate^T, up^T, dh^T
//     dx[panel] = dgate weight_gate + dup weight_up
//     a_gate[panel], a_up[panel], b_h[panel] = dgate, dup, h, packed
//   dweight_gate = a_gate x,  dweight_up = a_up x,  dweight_out = dy^T b_h
//
// Results are rounded to bfloat16 where the products and SwiGLU of LibTorch's layers round them;
// dx is rounded once. A packed panel takes 64 KB for 256 pairs of its depth, which stay in the L2
// cache. The multiply units bound it. docs/kernels.md, "Layers".

namespace heed::detail {

namespace {

constexpr int64_t kSwiGluPanel = 64;  // rows, or hidden features, at a time
constexpr int64_t kPairsRun = 256;    // pairs along the depth of a product
constexpr int64_t kProductRows = 96;  // of a product
static_assert(kProductRows % kMicroRows == 0 && kProductRows > kSwiGluPanel);

// The rows and weights for which it is faster than oneDNN's products: packed weights and panels of
// rows stay in the L2 cache, and rows are too few to pay for packing weights.
constexpr int64_t kFewestSwiGluRows = 32;
constexpr int64_t kMostSwiGluRows = 2048;
constexpr int64_t kMostSwiGluWeights = 1 << 17;  // elements of one weight

/// Memory of a thread that grows with its calls.
template <typename T>
class GrowingRoom {
 public:
  T* of(int64_t count) {
    if (count > size_) {
      memory_.reset(new T[static_cast<size_t>(count)]);
      size_ = count;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<T[]> memory_;
  int64_t size_ = 0;
};

/// A matrix of pairs, whose element (row, k) is at row * row_stride + k * column_stride.
struct PairMatrix {
  const BFloat16Pair* data;
  int64_t row_stride, column_stride;

  PairMatrix at(int64_t row) const { return {data + row * row_stride, row_stride, column_stride}; }
};

/// A tensor [n, 2 k], contiguous, as pairs of neighbors in its rows.
PairMatrix pairs_of(const at::Tensor& tensor) {
  return {static_cast<const BFloat16Pair*>(tensor.const_data_ptr()), tensor.size(1) / 2, 1};
}

/// A packed matrix [depth, columns], which the product reads by columns.
struct PackedMatrix {
  const BFloat16Pair* data;
  int64_t row;

  /// The transposed matrix.
  PairMatrix transposed() const { return {data, 1, row}; }
};

/// Some columns of rows of a bfloat16 matrix in memory.
Rows matrix_rows(const at::Tensor& tensor, int64_t row, int64_t count, int64_t column,
                 int64_t columns) {
  auto rows = rows_at(tensor, row * tensor.stride(0) + column, count, tensor.stride(0));
  rows.columns = columns;
  return rows;
}

Rows all_rows(const at::Tensor& tensor) {
  return matrix_rows(tensor, 0, tensor.size(0), 0, tensor.size(1));
}

const PairKernels& pair_kernels() { return instruction_set().matrix.of_pairs; }

/// The transposed rows of a panel. Its columns are a multiple of two vectors: one takes as long,
/// and three take longer than four.
PackedMatrix pack_panel(const Rows& rows, GrowingRoom<BFloat16Pair>& room) {
  const auto columns = round_up(rows.count, kSwiGluPanel / 2), pairs = rows.columns / 2;
  auto* to = room.of(pairs * columns);
  if (round_up(rows.count, kColumnMultiple) < columns) std::fill_n(to, pairs * columns, 0);
  pair_kernels().pack_transposed(rows, to, columns);
  return {to, columns};
}

/// The transposed rows.
PackedMatrix pack_rows(const Rows& rows, GrowingRoom<BFloat16Pair>& room) {
  const auto columns = round_up(rows.count, kColumnMultiple);
  auto* to = room.of(ceil_div(rows.columns, int64_t{2}) * columns);
  pair_kernels().pack_transposed(rows, to, columns);
  return {to, columns};
}

/// The rows, as pairs of neighbors in a column.
PackedMatrix pack_columns(const Rows& rows, GrowingRoom<BFloat16Pair>& room) {
  const auto columns = round_up(rows.columns, kColumnMultiple);
  auto* to = room.of(ceil_div(rows.count, int64_t{2}) * columns);
  pair_kernels().pack_columns(rows, to, columns);
  return {to, columns};
}

/// A product a b, whose depth is counted in pairs.
struct ProductTerm {
  PairMatrix a;
  PackedMatrix b;
  int64_t depth;
};

/// c [rows, columns] = a b for columns from `first` on, or c += a b.
void multiply_term(const ProductTerm& term, int64_t rows, int64_t first, int64_t columns, float* c,
                   bool accumulate) {
  const auto& [a, b, depth] = term;
  for (int64_t k = 0; k < depth; k += kPairsRun) {
    pair_kernels().multiply(
        {rows, columns, std::min(kPairsRun, depth - k), a.data + k * a.column_stride, a.row_stride,
         a.column_stride, b.data + k * b.row + first, b.row, c, kSwiGluPanel, accumulate || k > 0});
  }
}

/// The memory of one thread.
struct SwiGluWorkspace {
  GrowingRoom<BFloat16Pair> panel, hidden[2];
  GrowingRoom<BFloat16Pair> weights[3];     // gate, up, out
  GrowingRoom<BFloat16Pair> all_hidden[3];  // of all rows: the gradients of gate and up, and h
  GrowingRoom<BFloat16Pair> all_rows;
  float sums[kProductRows * kSwiGluPanel];
  GrowingRoom<c10::BFloat16> blocks[4];  // of a panel's hidden layer
};

SwiGluWorkspace& swiglu_workspace() {
  thread_local SwiGluWorkspace room;
  return room;
}

/// Some neighbors of a dimension.
struct PanelRange {
  int64_t first, count;
};

/// to = the sum of the products, rounded. All of them have as many columns.
void write_products(at::ArrayRef<ProductTerm> terms, const Rows& to) {
  auto* sums = swiglu_workspace().sums;
  for (int64_t column = 0; column < to.columns; column += kSwiGluPanel) {
    const auto columns = std::min(kSwiGluPanel, terms.front().b.row - column);
    for (int64_t row = 0; row < to.count; row += kProductRows) {
      auto block = to;
      block.data = static_cast<c10::BFloat16*>(to.data) + row * to.row_stride + column;
      block.count = std::min(kProductRows, to.count - row);
      block.columns = std::min(kSwiGluPanel, to.columns - column);
      for (const auto& [a, b, depth] : terms) {
        multiply_term({a.at(row), b, depth}, block.count, column, columns, sums,
                      /*accumulate=*/&a != &terms.front().a);
      }
      instruction_set().matrix.of_float.unpack(sums, kSwiGluPanel, 1, nullptr, block);
    }
  }
}

/// Cuts [0, count) into ranges of kSwiGluPanel.
template <typename Visit>
void for_panels_of(int64_t count, const Visit& visit) {
  for (int64_t first = 0; first < count; first += kSwiGluPanel) {
    visit(PanelRange{first, std::min(kSwiGluPanel, count - first)});
  }
}

/// A panel's hidden layer, transposed: rows of kSwiGluPanel elements for each of F features.
class HiddenPanel {
 public:
  /// A panel of SwiGluHidden.
  HiddenPanel(const at::Tensor& panels, const PanelRange& rows)
      : data_(static_cast<c10::BFloat16*>(const_cast<void*>(panels.const_data_ptr())) +
              rows.first / kSwiGluPanel * panels.stride(0)),
        rows_(rows.count) {}
  /// One in a thread's memory.
  HiddenPanel(GrowingRoom<c10::BFloat16>& room, int64_t features, int64_t rows)
      : data_(room.of(features * kSwiGluPanel)), rows_(rows) {}

  Rows of(const PanelRange& features) const {
    return {data_ + features.first * kSwiGluPanel,
            ElementType::bfloat16,
            features.count,
            rows_,
            kSwiGluPanel,
            1};
  }

 private:
  c10::BFloat16* data_;
  int64_t rows_;
};

/// A panel's gate and up.
struct GateAndUp {
  HiddenPanel gate, up;
};

/// The panel of `hidden`, or one in a thread's memory if there is none.
GateAndUp panel_of(const SwiGluHidden* hidden, int64_t features, const PanelRange& rows) {
  auto& blocks = swiglu_workspace().blocks;
  if (hidden) return {{hidden->gate, rows}, {hidden->up, rows}};
  return {{blocks[0], features, rows.count}, {blocks[1], features, rows.count}};
}

/// Computes the hidden layer of a panel of rows. Returns its packed columns, [F / 2, panel].
PackedMatrix compute_hidden(const Rows& rows, const SwiGluLayer& layer, const GateAndUp& result) {
  auto& room = swiglu_workspace();
  const auto depth = rows.columns / 2, features = layer.gate.size(0);
  const auto b = pack_panel(rows, room.panel);
  auto* to = room.hidden[0].of(features / 2 * b.row);
  const HiddenPanel hidden(room.blocks[2], features, rows.count);
  for_panels_of(features, [&](const PanelRange& block) {
    const auto gate = result.gate.of(block), up = result.up.of(block), h = hidden.of(block);
    write_products(ProductTerm{pairs_of(layer.gate).at(block.first), b, depth}, gate);
    write_products(ProductTerm{pairs_of(layer.up).at(block.first), b, depth}, up);
    instruction_set().layers.of_float.swiglu(gate, up, layer.form, h);
    pair_kernels().pack_columns(h, to + block.first / 2 * b.row, b.row);
  });
  return {to, b.row};
}

/// The gradients of a panel's hidden layer, and it itself.
struct HiddenGradients {
  HiddenPanel gate, up, hidden;
};

/// Computes the gradients of a panel, of the output's gradient. `out` is the packed last weight.
void differentiate_hidden(const Rows& gradient, const SwiGluLayer& layer, const GateAndUp& kept,
                          const PackedMatrix& out, const HiddenGradients& result) {
  auto& room = swiglu_workspace();
  const auto& kernels = instruction_set().layers.of_float;
  const auto b = pack_panel(gradient, room.panel);
  const HiddenPanel of_hidden(room.blocks[0], kSwiGluPanel, gradient.count);
  for_panels_of(layer.gate.size(0), [&](const PanelRange& block) {
    const auto dh = of_hidden.of({0, block.count});
    write_products(ProductTerm{out.transposed().at(block.first), b, gradient.columns / 2}, dh);
    const auto gate = kept.gate.of(block), up = kept.up.of(block);
    kernels.swiglu_backward(gate, up, layer.form, dh, result.gate.of(block), result.up.of(block));
    kernels.swiglu(gate, up, layer.form, result.hidden.of(block));
  });
}

/// The gradient of a weight [n, k]: a [n, T] b [T, k], rounded.
at::Tensor weight_gradient(const ProductTerm& product, const at::Tensor& weight) {
  auto result = empty_on_cpu(weight.sizes(), at::kBFloat16);
  write_products(product, all_rows(result));
  return result;
}

/// The backward pass of a layer.
class BackwardPass {
 public:
  BackwardPass(const at::Tensor& rows, const SwiGluLayer& layer, const SwiGluHidden& kept,
               const at::Tensor& gradient, const SwiGluWanted& wanted)
      : rows_(rows),
        layer_(layer),
        kept_(kept),
        gradient_(gradient),
        wanted_(wanted),
        features_(layer.gate.size(0)),
        pairs_(ceil_div(rows.size(0), int64_t{2})) {
    const auto row = round_up(features_, kColumnMultiple);
    for (size_t i = 0; i < 3; ++i) {
      all_hidden_[i] = {swiglu_workspace().all_hidden[i].of(pairs_ * row), row};
    }
  }

  SwiGluGradients run() {
    auto& room = swiglu_workspace();
    const auto out = pack_columns(all_rows(layer_.out), room.weights[2]);
    PackedMatrix weights[2] = {};
    SwiGluGradients result;
    if (wanted_.rows) {
      weights[0] = pack_columns(all_rows(layer_.gate), room.weights[0]);
      weights[1] = pack_columns(all_rows(layer_.up), room.weights[1]);
      result.rows = empty_on_cpu(rows_.sizes(), at::kBFloat16);
    }
    for_panels_of(rows_.size(0), [&](const PanelRange& panel) {
      const HiddenGradients hidden = {{room.blocks[1], features_, panel.count},
                                      {room.blocks[2], features_, panel.count},
                                      {room.blocks[3], features_, panel.count}};
      differentiate_hidden(rows_of(gradient_, panel), layer_, panel_of(&kept_, features_, panel),
                           out, hidden);
      if (wanted_.rows) differentiate_rows(hidden, weights, rows_of(result.rows, panel));
      const HiddenPanel* const all[] = {&hidden.gate, &hidden.up, &hidden.hidden};
      for (size_t i = 0; i < 3; ++i) {
        auto* to = const_cast<BFloat16Pair*>(all_hidden_[i].data);
        pair_kernels().pack_transposed(all[i]->of({0, features_}),
                                       to + panel.first / 2 * all_hidden_[i].row,
                                       all_hidden_[i].row);
      }
    });
    differentiate_weights(result);
    return result;
  }

 private:
  static Rows rows_of(const at::Tensor& tensor, const PanelRange& rows) {
    return matrix_rows(tensor, rows.first, rows.count, 0, tensor.size(1));
  }

  /// A panel's gradient of the rows.
  void differentiate_rows(const HiddenGradients& hidden, const PackedMatrix (&weights)[2],
                          const Rows& to) const {
    const auto term = [&](const HiddenPanel& gradient, GrowingRoom<BFloat16Pair>& room,
                          const PackedMatrix& weight) {
      const auto a = pack_columns(gradient.of({0, features_}), room);
      return ProductTerm{a.transposed(), weight, features_ / 2};
    };
    auto& [of_gate, of_up] = swiglu_workspace().hidden;
    const ProductTerm terms[] = {term(hidden.gate, of_gate, weights[0]),
                                 term(hidden.up, of_up, weights[1])};
    write_products(terms, to);
  }

  /// The gradients of the weights.
  void differentiate_weights(SwiGluGradients& result) const {
    const auto& [of_gate, of_up, hidden] = all_hidden_;
    auto& room = swiglu_workspace().all_rows;
    if (wanted_.gate || wanted_.up) {
      const auto b = pack_columns(all_rows(rows_), room);
      const auto differentiate = [&](const PackedMatrix& a, const at::Tensor& weight) {
        return weight_gradient({a.transposed(), b, pairs_}, weight);
      };
      if (wanted_.gate) result.gate = differentiate(of_gate, layer_.gate);
      if (wanted_.up) result.up = differentiate(of_up, layer_.up);
    }
    if (!wanted_.out) return;
    const auto a = pack_columns(all_rows(gradient_), room).transposed();
    result.out = weight_gradient({a, hidden, pairs_}, layer_.out);
  }

  const at::Tensor& rows_;
  const SwiGluLayer& layer_;
  const SwiGluHidden& kept_;
  const at::Tensor& gradient_;
  const SwiGluWanted& wanted_;
  int64_t features_, pairs_;
  PackedMatrix all_hidden_[3];  // [T / 2, F]: the gradients of gate and up, and h
};

}  // namespace

bool takes_swiglu_layer(const at::Tensor& rows, const SwiGluLayer& layer) {
  const auto& processor = instruction_set();
  const bool has_pairs = processor.multiplies_bfloat16 && !processor.has_tile_registers;
  if (!has_kernels() || !has_pairs) return false;
  const auto is_taken = [](const at::Tensor& tensor) {
    return packed_weight_of(tensor) == nullptr && is_plain(tensor) &&
           tensor.scalar_type() == at::kBFloat16 && tensor.dim() == 2 && tensor.is_contiguous() &&
           tensor.size(1) % 2 == 0 && tensor.storage_offset() % 2 == 0;
  };
  return rows.size(0) >= kFewestSwiGluRows && rows.size(0) <= kMostSwiGluRows &&
         layer.gate.numel() <= kMostSwiGluWeights && layer.out.numel() <= kMostSwiGluWeights &&
         is_taken(rows) && is_taken(layer.gate) && is_taken(layer.up) && is_taken(layer.out) &&
         layer.gate.size(1) == rows.size(1);
}

at::Tensor swiglu_layer(const at::Tensor& rows, const SwiGluLayer& layer, SwiGluHidden* kept) {
  auto& room = swiglu_workspace();
  const auto count = rows.size(0), features = layer.gate.size(0), columns = layer.out.size(0);
  if (kept) {
    const std::array<int64_t, 3> sizes = {ceil_div(count, kSwiGluPanel), features, kSwiGluPanel};
    *kept = {empty_on_cpu(sizes, at::kBFloat16), empty_on_cpu(sizes, at::kBFloat16)};
  }
  const auto out = pack_rows(all_rows(layer.out), room.weights[2]);
  auto result = empty_on_cpu({count, columns}, at::kBFloat16);
  for_panels_of(count, [&](const PanelRange& panel) {
    const auto x = matrix_rows(rows, panel.first, panel.count, 0, rows.size(1));
    const auto a = compute_hidden(x, layer, panel_of(kept, features, panel)).transposed();
    write_products(ProductTerm{a, out, features / 2},
                   matrix_rows(result, panel.first, panel.count, 0, columns));
  });
  return result;
}

SwiGluGradients swiglu_layer_backward(const at::Tensor& rows, const SwiGluLayer& layer,
                                      const SwiGluHidden& kept, const at::Tensor& gradient,
                                      const SwiGluWanted& wanted) {
  return BackwardPass(rows, layer, kept, gradient, wanted).run();
}

}  // namespace heed::detail
