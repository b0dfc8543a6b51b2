// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/tile.h"

// Finds the cells of a tile that are computed:
//
//   for each strip of 16 rows:
//     any = 0, all = 1                             # a bit for each cell of 16 keys
//     for each row of the strip:
//       any |= cells of which causal, window, lengths, mask and documents may show a key
//       all &= cells of which they show all keys
//     cells of the strip = any
//     the strip hides nothing if any = all, and all its cells have 16 keys
//
//   keys that a row sees   ......######## ################ ####............
//   any                    1              1                1
//   all                    0              1                0
//
// docs/kernels.md, Block ("What is hidden is not computed").

namespace heed::detail {

bool Tile::set_keys(KeyRange keys) {
  keys_ = keys;
  words_ = ceil_div(ceil_div(width(), kCellKeys), kCellsOfBits);
  strips_.assign(static_cast<size_t>(ceil_div(block_.rows(), kStripRows) * words_), 0);
  if (!cells_.empty()) look_at_cells();
  if (!key_bits_.empty()) copy_key_bits();
  whole_ = true;
  unhidden_strips_ = 0;
  uint64_t any = 0;
  for (int64_t row = 0; row < block_.rows(); row += kStripRows) {
    const auto strip = row / kStripRows;
    bool unhidden = true;
    for (int64_t word = 0; word < words_; ++word) {
      const auto existing = cells_between(0, width(), word * kCellsOfBits);
      const auto seen = cells_of(row, std::min(row + kStripRows, block_.rows()), word);
      strips_[static_cast<size_t>(strip * words_ + word)] = seen.any;
      any |= seen.any;
      whole_ = whole_ && seen.all == existing.any;
      unhidden = unhidden && seen.any == (seen.all & existing.all);
    }
    unhidden_strips_ |= uint64_t{unhidden} << strip;
  }
  return any != 0;
}

/// The cells of which some of these rows may see a key (`any`), and of which all of these rows see
/// all keys that exist (`all`): word `word` of their bits.
CellBits Tile::cells_of(int64_t first_row, int64_t last_row, int64_t word) const {
  const auto existing = cells_between(0, width(), word * kCellsOfBits).any;
  const bool all_in_range = seen_by_all_.first <= keys_.first && seen_by_all_.last >= keys_.last;
  if (all_in_range && cells_.empty()) return {existing, existing};
  CellBits of_rows = {0, existing};
  for (auto r = first_row; r < last_row; ++r) {
    CellBits seen = {existing, existing};
    if (!all_in_range) {
      const auto columns = both({row(r).first_key, row(r).last_key}, keys_);
      // The last cell may have fewer keys: a row that sees the last key sees it to its end.
      const auto last = columns.last == keys_.last ? padded(width()) : columns.last - keys_.first;
      seen = cells_between(columns.first - keys_.first, columns.empty() ? 0 : last,
                           word * kCellsOfBits);
    }
    if (!cells_.empty()) {
      const auto& bits = cells_[static_cast<size_t>(r * words_ + word)];
      seen.any &= bits.any;
      seen.all &= bits.all;
    }
    of_rows.any |= seen.any;
    of_rows.all &= seen.all;
  }
  return of_rows;
}

void Tile::look_at_cells() {
  const auto first = keys_.first / kCellKeys;
  const auto count = ceil_div(width(), kCellKeys);
  const KeyRange queries{block_.first_query, block_.first_query + block_.queries};
  for (int64_t h = 0; h < block_.heads; ++h) {
    auto* of_head = cells_.data() + h * block_.queries * words_;
    for (int64_t word = 0; word < words_; ++word) {
      const auto cell = word * kCellsOfBits;
      layout_.shown_keys().cells(block_.batch, block_.first_head + h, queries, first + cell,
                                 std::min(count - cell, kCellsOfBits), of_head + word, words_);
    }
  }
}

void Tile::copy_key_bits() {
  const auto first = keys_.first / kKeysOfBits;
  const KeyRange queries{block_.first_query, block_.first_query + block_.queries};
  for (int64_t h = 0; h < block_.heads; ++h) {
    layout_.shown_keys().key_bits(block_.batch, block_.first_head + h, queries,
                                  {first, ceil_div(keys_.last, kKeysOfBits)},
                                  key_bits_.data() + h * block_.queries * row_words_, row_words_);
  }
  for (int64_t r = 0; r < block_.rows(); ++r) {
    auto& row = rows_[static_cast<size_t>(r)];
    row.mask = key_bits_.data() + r * row_words_;
    row.mask_key = first * kKeysOfBits;
  }
}

/// Adds [first, last) to the runs: to the last run if that ends at `first`, else as a new one.
void Tile::add_to_runs(int64_t first, int64_t last) {
  if (!runs_.empty() && runs_.back().first + runs_.back().count == first) {
    runs_.back().count += last - first;
  } else {
    runs_.push_back({first, last - first});
  }
}

const std::vector<DepthRun>& Tile::column_runs(const uint64_t* strip, KeyRange columns) {
  runs_.clear();
  const auto last_cell = ceil_div(columns.last, kCellKeys);
  for (auto cell = columns.first / kCellKeys; cell < last_cell; ++cell) {
    if ((strip[cell / kCellsOfBits] >> (cell % kCellsOfBits) & 1U) == 0) continue;
    add_to_runs(cell * kCellKeys, std::min((cell + 1) * kCellKeys, columns.last));
  }
  return runs_;
}

uint64_t Tile::strips_of(int64_t cell) const {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(words_ == 1 && strips_.size() <= kCellsOfBits);
  uint64_t strips = 0;
  for (size_t strip = 0; strip < strips_.size(); ++strip) {
    strips |= (strips_[strip] >> cell & 1U) << strip;
  }
  return strips;
}

const std::vector<DepthRun>& Tile::row_runs(uint64_t strips) {
  runs_.clear();
  for (int64_t row = 0; strips != 0; strips >>= 1U, row += kStripRows) {
    if ((strips & 1U) != 0) add_to_runs(row, std::min(row + kStripRows, block_.rows()));
  }
  return runs_;
}

}  // namespace heed::detail
