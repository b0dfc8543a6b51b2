#include "cpu/decode/runs.h"

#include <algorithm>
#include <utility>

#include "cpu/isa/decode.h"
#include "cpu/threads.h"

namespace heed::detail {

namespace {

constexpr int64_t kRuns = 128;        // keep the threads of any CPU about evenly busy
constexpr int64_t kFewestKeys = 256;  // keep merging small beside reading
constexpr int64_t kMostKeys = 4096;   // more terms in one sum would be rounded to its precision

/// A power of two, as numbers of threads often are.
int64_t run_count(int64_t keys, int64_t key_cost) {
  const auto fewest = std::max(kFewestKeys, kWorthAThread / key_cost);
  int64_t count = keys >= fewest ? 2 : 1;  // a second thread gains more than merging costs
  while ((count < kRuns && 2 * count * fewest <= keys) || count * kMostKeys < keys) count *= 2;
  return count;
}

/// Whole tiles of keys; one where there are none, for every column has a result.
int64_t tiles_of(const KeyRange& keys) {
  return std::max<int64_t>(1, (keys.last - keys.first + kDecodeTile - 1) / kDecodeTile);
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
    if (within && !is_next) ++parts;  // that ends here
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
