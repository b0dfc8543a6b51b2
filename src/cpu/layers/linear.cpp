#include "cpu/layers/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/functional.h>

#include <algorithm>
#include <memory>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "cpu/capability.h"
#include "cpu/layers/dense.h"
#include "cpu/tensor_rows.h"

// input weight^T + bias of several layers with one input, in panels of 64 outputs:
//
//   few rows (1 to 8): pack the input rows once
//     for each panel of each layer, in parallel:
//       output[:, panel] = input weight[panel, :]^T + bias[panel]        # cpu/isa/few_rows.cpp
//   little work:
//     for each panel of each layer, in parallel:
//       packed [depth, 64] = weight[panel, :]^T
//       output[:, panel] = bias[panel] + input packed                    # cpu/isa/matrix.cpp
//
// With few rows, memory is the bound: each weight is read once. With little work, calls of
// operators and packing for larger products would cost more than the multiplications, so all
// layers share one parallel region. docs/kernels.md, Projections.

namespace heed::detail {

namespace {

constexpr int64_t kPanel = 64;  // outputs: the widest panel of a product

/// An uninitialized tensor for each layer's result.
std::vector<at::Tensor> empty_outputs(const at::Tensor& input,
                                      const std::vector<LinearParameters>& layers) {
  auto sizes = input.sizes().vec();
  return c10::fmap(layers, [&](const auto& layer) {
    sizes.back() = layer.weight.size(0);
    return empty_on_cpu(sizes, input.scalar_type());
  });
}

/// The address `index` elements after the tensor's first one; null if the tensor is undefined.
char* element(const at::Tensor& tensor, int64_t index) {
  if (!tensor.defined()) return nullptr;
  return static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())) +
         index * tensor.element_size();
}

/// Calls visit(i, first) for panels [begin, end), counted over all layers: the panel is outputs
/// [first, first + kPanel) of layer i.
template <typename Visit>
void for_panels(const std::vector<LinearParameters>& layers, int64_t begin, int64_t end,
                const Visit& visit) {
  int64_t before = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto panels = ceil_div(layers[i].weight.size(0), kPanel);
    for (auto panel = std::max(begin, before); panel < std::min(end, before + panels); ++panel) {
      visit(i, (panel - before) * kPanel);
    }
    before += panels;
  }
}

int64_t count_panels(const std::vector<LinearParameters>& layers) {
  int64_t panels = 0;
  for (const auto& layer : layers) panels += ceil_div(layer.weight.size(0), kPanel);
  return panels;
}

/// Computes outputs [first, first + kPanel) of a layer for input [rows, depth]. `panel`, scratch
/// of [depth, kPanel], gets the packed weight.
void multiply_panel(const float* input, int64_t rows, const LinearParameters& layer, int64_t first,
                    float* panel, float* output) {
  const auto& kernels = instruction_set().matrix.of_float;
  const auto& [weight, bias] = layer;
  const auto depth = weight.size(1), count = std::min(kPanel, weight.size(0) - first);
  const auto columns = round_up(count, kColumnMultiple);
  if (weight.stride(1) == 1) {
    kernels.pack_transposed(rows_at(weight, first * weight.stride(0), count, weight.stride(0)),
                            1.0F, panel, columns);
  } else {
    auto rows_of_panel = rows_at(weight.t(), first, depth, weight.stride(1));
    rows_of_panel.columns = count;
    kernels.pack(rows_of_panel, panel, columns);
  }
  const bool is_whole = columns == count;
  std::vector<float> products(is_whole ? 0 : static_cast<size_t>(rows * columns));
  float* to = is_whole ? output + first : products.data();
  const auto to_row = is_whole ? weight.size(0) : columns;
  if (bias.defined()) {
    const auto* added = bias.const_data_ptr<float>() + first;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(added, count, to + r * to_row);
  }
  kernels.multiply({rows, columns, depth, input, depth, 1, panel, columns, to, to_row,
                    /*accumulate=*/bias.defined()});
  if (is_whole) return;
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(to + r * to_row, count, output + r * weight.size(0) + first);
  }
}

}  // namespace

std::vector<at::Tensor> linear_of_few_rows(const at::Tensor& input,
                                           const std::vector<LinearParameters>& layers) {
  static_assert(kPanel == kFewRowsPanel);
  constexpr int64_t kElements = 1 << 16;  // elements of weights that are worth a thread
  const auto depth = input.size(-1), rows = input.numel() / depth;
  const auto& kernels = instruction_set().few_rows.of[static_cast<int>(element_type(input))];
  const auto padded = round_up(depth, kFewRowsMultiple);
  const auto rows_in = dense(input);
  const auto packed_rows = rows <= 2 ? rows : (rows <= 4 ? 4 : kFewRows);
  const auto packed = empty_on_cpu({packed_rows, padded}, at::kFloat);
  for (int64_t r = 0; r < rows; ++r) {
    kernels.pack(element(rows_in, r * depth), depth, element(packed, r * padded));
  }
  std::fill_n(packed.data_ptr<float>() + rows * padded, (packed_rows - rows) * padded, 0.0F);
  auto outputs = empty_outputs(input, layers);
  const auto grain = ceil_div(kElements, kPanel * depth);
  at::parallel_for(0, count_panels(layers), grain, [&](int64_t begin, int64_t end) {
    for_panels(layers, begin, end, [&](size_t i, int64_t first) {
      const auto& weight = layers[i].weight;
      const auto outputs_of_row = weight.size(0);
      kernels.multiply({element(weight, first * weight.stride(0)), weight.stride(0),
                        element(layers[i].bias, first), element(packed, 0),
                        element(outputs[i], first), outputs_of_row, rows,
                        std::min(kPanel, outputs_of_row - first), depth});
    });
  });
  return outputs;
}

std::vector<at::Tensor> small_linear(const at::Tensor& input,
                                     const std::vector<LinearParameters>& layers) {
  constexpr int64_t kMultiplyAdds = 1 << 20;  // as many as are worth a thread
  const auto depth = input.size(-1), rows = input.numel() / depth;
  const auto rows_in = dense(input);
  const auto* from = rows_in.const_data_ptr<float>();
  auto outputs = empty_outputs(input, layers);
  const auto grain = ceil_div(kMultiplyAdds, kPanel * depth * rows);
  at::parallel_for(0, count_panels(layers), grain, [&](int64_t begin, int64_t end) {
    const auto panel = std::make_unique<float[]>(static_cast<size_t>(depth * kPanel));
    for_panels(layers, begin, end, [&](size_t i, int64_t first) {
      multiply_panel(from, rows, layers[i], first, panel.get(), outputs[i].data_ptr<float>());
    });
  });
  return outputs;
}

}  // namespace heed::detail
