#include "cpu/decode/runs.h"

#include <algorithm>
#include <utility>

#include "core/ceil_div.h"
#include "cpu/isa/decode.h"
#include "cpu/threads.h"

// Cuts the keys of all columns, in tiles of 16, into runs of equal length:
//
//   tiles = sum over columns of ceil(keys / 16)
//   count = 1, 2, 4 .. 128, so that runs have enough keys; more if a run had over 4096 keys
//   for each run: its first tile = tiles * run / count
//                 number the pieces of the columns that this cuts
//
//   columns   |     0     |     1     |     2     |
//   runs      |   0   |    1    |   2   |    3    |
//   pieces    |   0   | 1 |  2  |  3  |4|    5    |
//
// Threads take runs, so this decides how evenly they share the keys that memory delivers.
// docs/kernels.md, Decode ("Loop").

namespace heed::detail {

namespace {

constexpr int64_t kRuns = 128;        // keeps the threads of any CPU about evenly busy
constexpr int64_t kFewestKeys = 256;  // keeps merging cheap beside reading
constexpr int64_t kMostKeys = 4096;   // the terms of a longer sum would be rounded too coarsely

/// The number of runs: a power of two, as the number of threads often is.
int64_t run_count(int64_t keys, int64_t key_cost) {
  const auto fewest = std::max(kFewestKeys, kWorthAThread / key_cost);
  int64_t count = keys >= fewest ? 2 : 1;  // a second thread gains more than merging costs
  while ((count < kRuns && 2 * count * fewest <= keys) || count * kMostKeys < keys) count *= 2;
  return count;
}

/// The number of tiles that hold these keys; 1 without keys, because every column has a result.
int64_t tiles_of(const KeyRange& keys) {
  return std::max<int64_t>(1, ceil_div(keys.last - keys.first, kDecodeTile));
}

}  // namespace

Runs::Runs(std::vector<KeyRange> keys, int64_t columns, int64_t key_cost)
    : keys_(std::move(keys)), columns_(columns) {
  int64_t tiles = 0;
  for (const auto& of_column : keys_) {
    tiles += columns * tiles_of(of_column);
    cost_ += static_cast<double>(columns * (of_column.last - of_column.first) * key_cost);
  }
  const auto count = run_count(tiles * kDecodeTile, key_cost);
  cuts_.reserve(static_cast<size_t>(count) + 1);
  size_t n = 0;
  int64_t before = 0;  // tiles before the columns of keys_[n]
  int64_t parts = 0;
  for (int64_t run = 0; run < count; ++run) {
    const auto tile = tiles * run / count;
    while (tile - before >= columns * tiles_of(keys_[n])) before += columns * tiles_of(keys_[n++]);
    const auto own = tiles_of(keys_[n]);
    const auto column = static_cast<int64_t>(n) * columns + (tile - before) / own;
    const auto first = (tile - before) % own;
    const bool within = first != 0;
    const bool is_next = !cuts_.empty() && cuts_.back().column == column && cuts_.back().within;
    if (within && !is_next) ++parts;  // the piece that ends here
    cuts_.push_back({column, keys_[n].first + first * kDecodeTile, parts, within});
    if (within) ++parts;
  }
  cuts_.push_back({static_cast<int64_t>(keys_.size()) * columns, 0, parts, false});
}

Runs::Parts Runs::parts_of(int64_t column) const {
  const auto first = std::partition_point(cuts_.begin(), cuts_.end(), [&](const Cut& cut) {
    return cut.column < column || (cut.column == column && !cut.within);
  });
  if (first->column != column) return {0, 0};
  auto last = first;
  while ((last + 1)->column == column) ++last;
  return {first->part - 1, last->part + 1};
}

}  // namespace heed::detail
