// SPDX-License-Identifier: BSD-3-Clause
#include "weights/stacks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>

#include "weights/translation.h"

namespace heed::detail {

std::string name_in_list(const std::string& list, int64_t index, const std::string& name) {
  return list + "." + std::to_string(index) + "." + name;
}

std::optional<Surroundings> find_in_list(const std::string& list, const std::string& part,
                                         const std::string& name) {
  const auto where = find_part(list, name);
  if (!where) return std::nullopt;
  const auto dot = where->after.find('.');
  if (dot == std::string::npos || dot == 0) return std::nullopt;
  const auto index = where->after.substr(0, dot);
  const bool is_index =
      std::all_of(index.begin(), index.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  const auto inner = find_part(part, where->after.substr(dot + 1));
  if (!is_index || !inner || !inner->before.empty()) return std::nullopt;
  return Surroundings{where->before, inner->after};
}

std::vector<at::Tensor> unstacked(const at::Tensor& stack, int64_t index,
                                  const std::vector<int64_t>& rows, const StackLayout& layout) {
  if (stack.dim() < 2) return {};
  const auto one = stack.select(0, index);
  const auto slice = layout.transposed() ? transposed(one) : one;
  const auto count = static_cast<int64_t>(rows.size());
  const auto total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (slice.size(0) != total) return {};
  if (!layout.interleaved()) return slice.split_with_sizes(rows);
  std::vector<at::Tensor> parts;
  for (int64_t part = 0; part < count; ++part) {
    if (rows[static_cast<size_t>(part)] * count != total) return {};
    parts.push_back(slice.slice(0, part, std::nullopt, count));
  }
  return parts;
}

at::Tensor stacked(const std::vector<at::Tensor>& tensors, int64_t count,
                   const StackLayout& layout) {
  const auto size = tensors.size() / static_cast<size_t>(count);
  std::vector<at::Tensor> slices;
  for (size_t first = 0; first < tensors.size(); first += size) {
    const at::TensorList parts(tensors.data() + first, size);
    const auto slice = layout.interleaved() ? at::stack(parts, 1).flatten(0, 1) : at::cat(parts);
    slices.push_back(layout.transposed() ? transposed(slice) : slice);
  }
  return at::stack(slices);
}

}  // namespace heed::detail
