// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/linear.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "cpu/capability.h"
#include "cpu/layers/dense.h"
#include "cpu/layers/linear_outputs.h"
#include "cpu/tensor_rows.h"

// input weight^T + bias of several layers with one input of 1 to 8 rows, in panels of 64 outputs:
//
//   pack the input rows once
//   for each panel of each layer, in parallel:
//     output[:, panel] = input weight[panel, :]^T + bias[panel]        # cpu/isa/few_rows.cpp
//
// Memory is the bound: each weight is read once. docs/kernels.md, Projections.

namespace heed::detail {

namespace {

/// The address `index` elements after the tensor's first one; null if the tensor is undefined.
char* element(const at::Tensor& tensor, int64_t index) {
  if (!tensor.defined()) return nullptr;
  return static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())) +
         index * tensor.element_size();
}

/// Calls visit(i, first) for panels [begin, end), counted over all layers: the panel is outputs
/// [first, first + kFewRowsPanel) of layer i.
template <typename Visit>
void for_panels(const std::vector<LinearParameters>& layers, int64_t begin, int64_t end,
                const Visit& visit) {
  int64_t before = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto panels = ceil_div(layers[i].weight.size(0), kFewRowsPanel);
    for (auto panel = std::max(begin, before); panel < std::min(end, before + panels); ++panel) {
      visit(i, (panel - before) * kFewRowsPanel);
    }
    before += panels;
  }
}

int64_t count_panels(const std::vector<LinearParameters>& layers) {
  int64_t panels = 0;
  for (const auto& layer : layers) panels += ceil_div(layer.weight.size(0), kFewRowsPanel);
  return panels;
}

}  // namespace

std::vector<at::Tensor> linear_of_few_rows(const at::Tensor& input,
                                           const std::vector<LinearParameters>& layers) {
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
  const auto grain = ceil_div(kElements, kFewRowsPanel * depth);
  at::parallel_for(0, count_panels(layers), grain, [&](int64_t begin, int64_t end) {
    for_panels(layers, begin, end, [&](size_t i, int64_t first) {
      const auto& weight = layers[i].weight;
      const auto outputs_of_row = weight.size(0);
      kernels.multiply({element(weight, first * weight.stride(0)), weight.stride(0),
                        element(layers[i].bias, first), element(packed, 0),
                        element(outputs[i], first), outputs_of_row, rows,
                        std::min(kFewRowsPanel, outputs_of_row - first), depth});
    });
  });
  return outputs;
}

}  // namespace heed::detail
