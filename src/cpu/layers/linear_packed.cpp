// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/core/functional.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <array>
#include <memory>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "cpu/capability.h"
#include "cpu/layers/dense.h"
#include "cpu/layers/linear.h"
#include "cpu/layers/linear_outputs.h"
#include "cpu/layers/packed_inputs.h"
#include "cpu/layers/packed_weight.h"
#include "cpu/tensor_rows.h"

// function(input weight^T + bias) of several layers with one input and packed weights:
//
//   a [rows, K] = the input, as floats, as pairs of bfloat16 or, rounded, as quads of bytes
//   for each 16 outputs of all layers, in parallel; neighbors of one panel together:
//     for 480 rows at a time, or 48 of pairs and quads with one block of the depth:
//       for about 384 operands of the depth at a time:
//         b [384, columns] = the weight's: in memory as it is, or unpacked into the L2 cache
//         sums [rows, columns] += a b, and prefetch what is read next     # cpu/isa/matrix.cpp
//       output = function(sums * scales + bias)                      # cpu/isa/finish_rows.h
//
// With up to 8 rows, sums += a b reads the weight as it is packed, 512 numbers of the depth for 4
// rows of floats, or 8 of pairs, at a time: add_few and add_few_pairs of cpu/isa/packed.cpp.
//
// Each weight is read once for up to 480 rows. With few rows memory is the bound, with many the
// multiply units. docs/kernels.md, "Packed weights".

namespace heed::detail {

namespace {

constexpr int64_t kOperandRun = 384, kLongestRun = 576;  // operands
constexpr int64_t kRowsAtOnce = 480;
/// Rows at once where the depth is one run. Products of pairs and of bytes are short, so that their
/// sums should stay in the L1 cache.
template <typename Operand>
constexpr int64_t kRowsOfOneRun = kDepthOf<Operand> == 1 ? kRowsAtOnce : 48;
constexpr int64_t kRegisterRows = 16;  // of AMX's; a block of rows ends with whole registers
static_assert(kRowsAtOnce % kMicroRows == 0 && kRowsAtOnce % kRegisterRows == 0);
static_assert(kRowsOfOneRun<ByteQuad> % kMicroRows == 0 &&
              kRowsOfOneRun<ByteQuad> % kRegisterRows == 0);
constexpr int64_t kFewPackedRows = 8;

/// Operands of each block of the depth, a multiple of `group` of them. Blocks are of one size: a
/// short one takes longer to read and write sums than to multiply.
int64_t operand_run(int64_t depth, int64_t group) {
  const auto blocks = std::max<int64_t>(1, (depth + kOperandRun / 2) / kOperandRun);
  return round_up(ceil_div(depth, blocks), std::max<int64_t>(2, group));
}

/// Whether products of `format` with bfloat16 multiply pairs.
bool has_pairs(PackedFormat format) {
  return format == PackedFormat::bfloat16 ||
         instruction_set().packed.to_pairs[static_cast<int>(format)] != nullptr;
}

/// The operands of a panel's weight in a block of the depth: in memory, or unpacked to `room`.
inline const float* operands_of(const PackedRows& from, PackedFormat format, float* room) {
  if (format == PackedFormat::float32) return static_cast<const float*>(from.values);
  instruction_set().packed.to_floats[static_cast<int>(format)](from, room);
  return room;
}

inline const BFloat16Pair* operands_of(const PackedRows& from, PackedFormat format,
                                       BFloat16Pair* room) {
  if (format == PackedFormat::bfloat16) return static_cast<const BFloat16Pair*>(from.values);
  instruction_set().packed.to_pairs[static_cast<int>(format)](from, room);
  return room;
}

inline const ByteQuad* operands_of(const PackedRows& from, PackedFormat format, ByteQuad* room) {
  instruction_set().packed_quads.to_quads[static_cast<int>(format)](from, room);
  return room;
}

/// Where a product's rows, and its block of the depth, begin.
struct InputBlock {
  int64_t row, first;
};

void multiply(const InputRows<ByteQuad, int32_t>& /*input*/, const InputBlock& /*block*/,
              const PackedRows& /*weight*/, const Product<int32_t, ByteQuad>& product) {
  instruction_set().matrix.of_quads.multiply(product);
}
void multiply(const InputRows<ByteQuad, float>& input, const InputBlock& block,
              const PackedRows& weight, const Product<float, ByteQuad>& product) {
  const auto groups = input.group_sums.size(1);
  const auto* sums =
      input.group_sums.const_data_ptr<float>() + block.row * groups + block.first / weight.group;
  instruction_set().packed_quads.multiply_groups(
      {product, weight.scales, weight.offsets, weight.group, sums, groups});
}
void multiply(const InputRows<float>& /*input*/, const InputBlock& /*block*/,
              const PackedRows& /*weight*/, const Product<float>& product) {
  instruction_set().matrix.of_float.multiply(product);
}
void multiply(const InputRows<BFloat16Pair>& /*input*/, const InputBlock& /*block*/,
              const PackedRows& /*weight*/, const Product<float, BFloat16Pair>& product) {
  instruction_set().matrix.of_pairs.multiply(product);
}

/// The numbers of the depth in a row of a weight's values.
int64_t numbers_of_row(const PackedWeight& weight) {
  return ceil_div(weight.depth, weight.values.size(1));
}

/// The bytes of a row of `values`.
int64_t row_bytes(const at::Tensor& tensor) { return kPackedPanel * tensor.element_size(); }

/// Some outputs of one panel.
struct PanelColumns {
  int64_t panel, first, count;
};

/// Numbers [first, first + count) of the depth, for these columns.
PackedRows packed_rows(const PackedWeight& weight, const PanelColumns& columns, int64_t first,
                       int64_t count) {
  const auto at = [&](const at::Tensor& tensor, int64_t row) -> const char* {
    if (!tensor.defined()) return nullptr;
    return static_cast<const char*>(tensor.const_data_ptr()) +
           (columns.panel * tensor.size(1) + row) * row_bytes(tensor) +
           columns.first * tensor.element_size();
  };
  const bool has_groups = weight.group > 0;
  return {at(weight.values, first / numbers_of_row(weight)),
          has_groups ? at(weight.scales, first / weight.group) : nullptr,
          has_groups ? at(weight.offsets, first / weight.group) : nullptr,
          count,
          weight.group,
          columns.count};
}

/// Bytes in memory.
struct ByteRange {
  const char* begin;
  int64_t bytes;
};

/// The numbers that follow number `first` of the depth of a panel, or the next panel's: those of a
/// block, which is read next.
ByteRange numbers_after(const PackedWeight& weight, int64_t panel, int64_t first) {
  const auto row = panel * weight.values.size(1) + ceil_div(first, numbers_of_row(weight));
  const auto left = weight.values.size(0) * weight.values.size(1) - row;
  const auto bytes = row_bytes(weight.values);
  constexpr int64_t kBytes = kOperandRun * kPackedPanel * 4;  // a block of operands of 4 bytes
  return {static_cast<const char*>(weight.values.const_data_ptr()) + row * bytes,
          std::min(left * bytes, kBytes)};
}

/// A layer, and where its outputs go.
struct LayerOutputs {
  const PackedWeight& weight;
  const at::Tensor& bias;
  const at::Tensor& output;
  OutputFunction function;
};

/// The outputs of rows [row, row + rows) and these columns, of sums that are to be filled in.
PackedOutputs outputs_at(const LayerOutputs& layer, const PanelColumns& columns, int64_t row,
                         int64_t rows) {
  const auto& [weight, bias, output, function] = layer;
  const auto first = columns.panel * kPackedPanel + columns.first;
  auto to = rows_at(output, row * weight.outputs + first, rows, weight.outputs);
  to.columns = std::min(columns.count, weight.outputs - first);
  const auto* scales =
      weight.format == PackedFormat::int8 ? weight.scales.const_data_ptr<float>() + first : nullptr;
  const auto* biases =
      bias.defined() ? static_cast<const char*>(bias.const_data_ptr()) + first * bias.element_size()
                     : nullptr;
  return {nullptr, kPackedPanel, nullptr, scales, biases, to, function};
}

template <typename Operand>
void write(PackedOutputs outputs, const InputRows<Operand>& /*input*/, int64_t /*row*/,
           const float* sums) {
  outputs.sums = sums;
  instruction_set().packed.finish(outputs);
}

void write(PackedOutputs outputs, const InputRows<ByteQuad, float>& input, int64_t row,
           const float* sums) {
  outputs.sums = sums;
  outputs.row_scales = input.scales.const_data_ptr<float>() + row;
  instruction_set().packed.finish(outputs);
}

void write(const PackedOutputs& outputs, const InputRows<ByteQuad, int32_t>& input, int64_t row,
           const int32_t* sums) {
  instruction_set().packed_quads.finish({sums, outputs.sums_row,
                                         input.corrections.const_data_ptr<int32_t>() + row,
                                         input.scales.const_data_ptr<float>() + row, outputs.scales,
                                         outputs.bias, outputs.to, outputs.function});
}

auto add_few_of(const FewInputRows<float>& /*input*/, PackedFormat format) {
  return instruction_set().packed.add_few[static_cast<int>(format)];
}
auto add_few_of(const FewInputRows<BFloat16Pair>& /*input*/, PackedFormat format) {
  return instruction_set().packed.add_few_pairs[static_cast<int>(format)];
}

/// The product of few rows with some columns of a panel.
template <typename Operand>
void compute_few(const FewInputRows<Operand>& input, const LayerOutputs& layer,
                 const PanelColumns& columns) {
  const auto& weight = layer.weight;
  const auto add = add_few_of(input, weight.format);
  std::array<float, kFewPackedRows * kPackedPanel> sums{};
  for (int64_t first = 0; first < weight.depth; first += kPackedFewNumbers) {
    const auto block =
        packed_rows(weight, columns, first, std::min(kPackedFewNumbers, weight.depth - first));
    const auto group = weight.group > 0 ? first / weight.group : 0;
    constexpr auto kRows = kPackedFew<Operand>;
    for (int64_t row = 0; row < input.count; row += kRows) {
      add({block, input.data + row * input.row + first / kDepthOf<Operand>, input.row,
           std::min(kRows, input.count - row), input.group_sums + row * input.groups + group,
           input.groups, sums.data() + row * kPackedPanel});
    }
  }
  auto outputs = outputs_at(layer, columns, 0, input.count);
  outputs.sums = sums.data();
  instruction_set().packed.finish(outputs);
}

/// A thread's memory.
template <typename Operand, typename Sum>
struct Workspace {
  std::unique_ptr<Sum[]> sums;       // [kRowsAtOnce, kPackedPanel]
  std::unique_ptr<Operand[]> panel;  // [kLongestRun, kPackedPanel]
};

template <typename Operand, typename Sum>
class PackedLayer {
 public:
  PackedLayer(const InputRows<Operand, Sum>& input, const LayerOutputs& layer)
      : input_(input), layer_(layer) {}

  void compute(const PanelColumns& columns, int64_t rows) const {
    if (run() >= input_.depth) return compute_in_one_run(columns, rows);
    auto& room = workspace(std::min(kRowsAtOnce, input_.count));
    for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
      add_products(columns, row, std::min(kRowsAtOnce, input_.count - row), room);
      const auto outputs = outputs_at(layer_, columns, row, std::min(kRowsAtOnce, rows - row));
      write(outputs, input_, row, room.sums.get());
    }
  }

 private:
  /// This thread's memory, with room for `rows` sums.
  static Workspace<Operand, Sum>& workspace(int64_t rows) {
    thread_local Workspace<Operand, Sum> room;
    thread_local int64_t room_rows = 0;
    if (!room.panel) room.panel.reset(new Operand[kLongestRun * kPackedPanel]);
    if (room_rows < rows) {
      room.sums.reset(new Sum[static_cast<size_t>(rows * kPackedPanel)]);
      room_rows = rows;
    }
    return room;
  }

  /// Operands of each block of the depth.
  int64_t run() const { return operand_run(input_.depth, layer_.weight.group / kDepthOf<Operand>); }

  /// The weight's operands are the same for all rows.
  void compute_in_one_run(const PanelColumns& columns, int64_t rows) const {
    constexpr auto kRows = kRowsOfOneRun<Operand>;
    auto& room = workspace(std::min(kRows, input_.count));
    Block block(layer_.weight, columns, 0, input_.depth, room.panel.get());
    for (int64_t row = 0; row < rows; row += kRows) {
      add_products(block, row, std::min(kRows, input_.count - row), room.sums.get());
      const auto outputs = outputs_at(layer_, columns, row, std::min(kRows, rows - row));
      write(outputs, input_, row, room.sums.get());
    }
  }

  void add_products(const PanelColumns& columns, int64_t row, int64_t rows,
                    Workspace<Operand, Sum>& room) const {
    const auto run = this->run();
    for (int64_t k = 0; k < input_.depth; k += run) {
      Block block(layer_.weight, columns, k, std::min(run, input_.depth - k), room.panel.get());
      add_products(block, row, rows, room.sums.get());
    }
  }

  /// A block of the depth, and what is prefetched meanwhile.
  struct Block {
    Block(const PackedWeight& weight, const PanelColumns& columns, int64_t k, int64_t depth,
          Operand* room)
        : k(k),
          depth(depth),
          first(k * kDepthOf<Operand>),
          rows(packed_rows(weight, columns, first,
                           std::min(depth * kDepthOf<Operand>, weight.depth - first))),
          operands(operands_of(rows, weight.format, room)),
          next(numbers_after(weight, columns.panel, first + rows.count)),
          ahead{&next.begin, &next.begin + (next.bytes > 0 ? 1 : 0), next.bytes, 0} {}
    Block(const Block&) = delete;  // its pointers
    Block& operator=(const Block&) = delete;

    int64_t k, depth, first;
    PackedRows rows;
    const Operand* operands;
    ByteRange next;
    RowsAhead ahead;
  };

  void add_products(Block& block, int64_t row, int64_t rows, Sum* sums) const {
    Product<Sum, Operand> product{rows,
                                  block.rows.columns,
                                  block.depth,
                                  input_.data + row * input_.depth + block.k,
                                  input_.depth,
                                  /*a_column=*/1,
                                  block.operands,
                                  kPackedPanel,
                                  sums,
                                  kPackedPanel,
                                  /*accumulate=*/block.k > 0};
    product.ahead = &block.ahead;
    multiply(input_, {row, block.first}, block.rows, product);
  }

  const InputRows<Operand, Sum>& input_;
  const LayerOutputs layer_;
};

/// Calls visit(i, columns) for units [begin, end) of 16 outputs, counted over all layers.
template <typename Visit>
void for_columns(const std::vector<const PackedWeight*>& weights, int64_t begin, int64_t end,
                 const Visit& visit) {
  constexpr int64_t kUnits = kPackedPanel / kColumnMultiple;
  int64_t before = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto units = ceil_div(weights[i]->outputs, kColumnMultiple);
    for (auto unit = std::max<int64_t>(begin - before, 0); unit < std::min(end - before, units);) {
      const auto panel = unit / kUnits;
      const auto last = std::min({(panel + 1) * kUnits, units, end - before});
      visit(i,
            PanelColumns{panel, unit % kUnits * kColumnMultiple, (last - unit) * kColumnMultiple});
      unit = last;
    }
    before += units;
  }
}

/// Units that are worth a thread.
int64_t units_per_thread(int64_t rows, int64_t depth) {
  constexpr int64_t kWeights = 1 << 16;  // read for up to kRows rows
  constexpr int64_t kRows = 8;
  return std::max<int64_t>(
      1, kWeights / (kColumnMultiple * depth * std::max<int64_t>(1, ceil_div(rows, kRows))));
}

at::Tensor without_kernels(const at::Tensor& input, const PackedWeight& weight,
                           const at::Tensor& bias) {
  return at::linear(input, unpack_weight(weight).to(input.scalar_type()), bias);
}

/// Computes layers of one format, with compute(i, columns) for some outputs of layer i.
template <typename Compute>
void for_layers(const std::vector<const PackedWeight*>& weights, int64_t rows,
                const Compute& compute) {
  int64_t units = 0;
  for (const auto* weight : weights) units += ceil_div(weight->outputs, kColumnMultiple);
  at::parallel_for(0, units, units_per_thread(rows, weights[0]->depth),
                   [&](int64_t begin, int64_t end) { for_columns(weights, begin, end, compute); });
}

bool are_alike(const PackedWeight& one, const PackedWeight& other) {
  return one.format == other.format && one.group == other.group &&
         one.quantize_activations == other.quantize_activations;
}

/// Whether inputs of many rows are rounded to bytes for products with such a weight.
bool in_quads(const PackedWeight& weight) {
  constexpr int64_t kMostNumbers = int64_t{1} << 16;  // whose products' sum int32 can hold
  return weight.quantize_activations && instruction_set().multiplies_bytes &&
         weight.depth <= kMostNumbers;
}

/// Whether products of this input with such a weight multiply pairs of bfloat16.
bool in_pairs(const at::Tensor& input, const PackedWeight& weight) {
  return input.scalar_type() == at::kBFloat16 && instruction_set().multiplies_bfloat16 &&
         has_pairs(weight.format);
}

/// Whether products of few rows do. A single row is read from memory a little faster as floats.
/// Making pairs of int8 takes longer, which pays where more rows use them.
bool few_in_pairs(const at::Tensor& input, const PackedWeight& weight, int64_t rows) {
  if (rows == 1 || !in_pairs(input, weight)) return false;
  return weight.format != PackedFormat::int8 || (rows > kPackedFew<float> && weight.depth % 2 == 0);
}

}  // namespace

std::vector<at::Tensor> linear_packed(const at::Tensor& input,
                                      const std::vector<LinearParameters>& layers,
                                      OutputFunction function) {
  const auto weights =
      c10::fmap(layers, [](const auto& layer) { return packed_weight_of(layer.weight); });
  const auto& first = *weights[0];
  TORCH_INTERNAL_ASSERT(has_kernels() || function == OutputFunction::identity);
  if (!has_kernels() || !std::all_of(weights.begin() + 1, weights.end(), [&](const auto* weight) {
        return are_alike(*weight, first);
      })) {
    return c10::fmap(layers, [&](const auto& layer) {
      return has_kernels() ? linear_packed(input, {layer}, function).front()
                           : without_kernels(input, *packed_weight_of(layer.weight), layer.bias);
    });
  }
  const auto rows = input.numel() / first.depth;
  auto outputs = empty_outputs(input, layers);
  const auto compute_rows = [&](const auto& operands) {
    for_layers(weights, rows, [&](size_t i, const PanelColumns& columns) {
      PackedLayer(operands, {*weights[i], layers[i].bias, outputs[i], function})
          .compute(columns, rows);
    });
  };
  const auto compute_few_rows = [&](const auto& few) {
    for_layers(weights, rows, [&](size_t i, const PanelColumns& columns) {
      compute_few(few, {*weights[i], layers[i].bias, outputs[i], function}, columns);
    });
  };
  if (rows <= kFewPackedRows && few_in_pairs(input, first, rows)) {
    compute_few_rows(as_few_pairs(input, rows, first.group));
  } else if (rows <= kFewPackedRows) {
    compute_few_rows(as_few(input, rows, first.group));
  } else if (in_quads(first)) {
    if (first.format == PackedFormat::int4) {
      compute_rows(as_quads<float>(input, rows, first.group));
    } else {
      compute_rows(as_quads<int32_t>(input, rows, 0));
    }
  } else if (in_pairs(input, first)) {
    const bool in_registers = instruction_set().has_tile_registers;
    compute_rows(as_pairs(input, rows, in_registers ? round_up(rows, kRegisterRows) : rows));
  } else {
    compute_rows(as_floats(input, rows));
  }
  return outputs;
}

}  // namespace heed::detail
