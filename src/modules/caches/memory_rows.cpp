// SPDX-License-Identifier: BSD-3-Clause
#include "modules/caches/memory_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>

#include "core/to_device.h"

namespace heed::detail {

MemoryRows::MemoryRows(const std::vector<int64_t>& rows, const std::vector<int64_t>& offsets,
                       at::Device device) {
  for (const auto row : rows) count_ = std::max(count_, row + 1);
  std::vector<int64_t> lengths(static_cast<size_t>(count_), 0);
  std::vector<int64_t> row_of_token, index_in_row;
  for (size_t n = 0; n < rows.size(); ++n) {
    auto& length = lengths[static_cast<size_t>(rows[n])];
    for (auto token = offsets[n]; token < offsets[n + 1]; ++token) {
      row_of_token.push_back(rows[n]);
      index_in_row.push_back(length++);
    }
    longest_ = std::max(longest_, length);
  }
  std::vector<int64_t> places;
  bool in_order = true;
  for (size_t token = 0; token < row_of_token.size(); ++token) {
    places.push_back(row_of_token[token] * longest_ + index_in_row[token]);
    in_order = in_order && places.back() == static_cast<int64_t>(token);
  }
  const auto is_full = [&](int64_t length) { return length == longest_; };
  const bool all_full = std::all_of(lengths.begin(), lengths.end(), is_full);
  if (!all_full) query_lengths_ = to_device(lengths, device);
  if (!all_full || !in_order) places_ = to_device(places, device);
}

at::Tensor MemoryRows::gather(const at::Tensor& heads) const {
  const auto head_count = heads.size(1), columns = heads.size(3);
  auto rows = heads.squeeze(0).transpose(0, 1);  // [T, H, D]
  if (places_.defined()) {
    rows = at::zeros({count_ * longest_, head_count, columns}, rows.options())
               .index_copy(0, places_, rows);
  }
  return rows.reshape({count_, longest_, head_count, columns}).transpose(1, 2);
}

at::Tensor MemoryRows::scatter(const at::Tensor& outputs) const {
  const auto head_count = outputs.size(1), columns = outputs.size(3);
  auto rows = outputs.transpose(1, 2).reshape({count_ * longest_, head_count, columns});
  if (places_.defined()) rows = rows.index_select(0, places_);
  return rows.transpose(0, 1).unsqueeze(0);
}

}  // namespace heed::detail
