// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/decode/splits.h"

#include <algorithm>
#include <utility>

#include "core/ceil_div.h"
#include "cpu/isa/decode.h"
#include "cpu/threads.h"

// Cuts the keys of all columns, in cells of 16, into splits of equal length:
//
//   cells = sum over columns of ceil(keys / 16)
//   count = 1, 2, 4 .. 128, so that splits have enough keys; more if a split had over 4096 keys
//   for each split: its first cell = cells * split / count
//                   number the parts of the columns that this cuts
//
//   columns   |     0     |     1     |     2     |
//   splits    |   0   |    1    |   2   |    3    |
//   parts     |   0   | 1 |  2  |  3  |4|    5    |
//
// Threads take splits, so this decides how evenly they share the keys that memory delivers.
// docs/kernels.md, Decode ("Loop").

namespace heed::detail {

namespace {

constexpr int64_t kSplits = 128;      // keeps the threads of any CPU about evenly busy
constexpr int64_t kFewestKeys = 256;  // keeps merging cheap beside reading
constexpr int64_t kMostKeys = 4096;   // the terms of a longer sum would be rounded too coarsely

/// The number of splits: a power of two, as the number of threads often is.
int64_t split_count(int64_t keys, int64_t key_cost) {
  const auto fewest = std::max(kFewestKeys, kWorthAThread / key_cost);
  int64_t count = keys >= fewest ? 2 : 1;  // a second thread gains more than merging costs
  while ((count < kSplits && 2 * count * fewest <= keys) || count * kMostKeys < keys) count *= 2;
  return count;
}

/// The number of cells that hold these keys; 1 without keys, because every column has a result.
int64_t cells_of(const KeyRange& keys) {
  return std::max<int64_t>(1, ceil_div(keys.last - keys.first, kDecodeCell));
}

}  // namespace

Splits::Splits(std::vector<KeyRange> keys, int64_t columns, int64_t key_cost)
    : keys_(std::move(keys)), columns_(columns) {
  int64_t cells = 0;
  for (const auto& of_column : keys_) {
    cells += columns * cells_of(of_column);
    cost_ += static_cast<double>(columns * (of_column.last - of_column.first) * key_cost);
  }
  const auto count = split_count(cells * kDecodeCell, key_cost);
  cuts_.reserve(static_cast<size_t>(count) + 1);
  size_t n = 0;
  int64_t before = 0;  // cells before the columns of keys_[n]
  int64_t parts = 0;
  for (int64_t split = 0; split < count; ++split) {
    const auto cell = cells * split / count;
    while (cell - before >= columns * cells_of(keys_[n])) before += columns * cells_of(keys_[n++]);
    const auto own = cells_of(keys_[n]);
    const auto column = static_cast<int64_t>(n) * columns + (cell - before) / own;
    const auto first = (cell - before) % own;
    const bool within = first != 0;
    const bool is_next = !cuts_.empty() && cuts_.back().column == column && cuts_.back().within;
    if (within && !is_next) ++parts;  // the part that ends here
    cuts_.push_back({column, keys_[n].first + first * kDecodeCell, parts, within});
    if (within) ++parts;
  }
  cuts_.push_back({static_cast<int64_t>(keys_.size()) * columns, 0, parts, false});
}

Splits::Parts Splits::parts_of(int64_t column) const {
  const auto first = std::partition_point(cuts_.begin(), cuts_.end(), [&](const Cut& cut) {
    return cut.column < column || (cut.column == column && !cut.within);
  });
  if (first->column != column) return {0, 0};
  auto last = first;
  while ((last + 1)->column == column) ++last;
  return {first->part - 1, last->part + 1};
}

}  // namespace heed::detail
