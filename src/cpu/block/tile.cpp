#include "cpu/block/tile.h"

namespace heed::detail {

namespace {

/// Bits [first, last) of those from `start` to `start` + 64.
uint64_t bits_between(int64_t first, int64_t last, int64_t start) {
  first = std::max<int64_t>(first - start, 0);
  last = std::min(last - start, kCellsOfBits);
  if (first >= last) return 0;
  return first_bits(last - first) << first;
}

}  // namespace

bool Tile::set_keys(KeyRange keys) {
  keys_ = keys;
  const auto cells = ceil_div(width(), kCellKeys);
  words_ = ceil_div(cells, kCellsOfBits);
  strips_.assign(static_cast<size_t>(ceil_div(block_.rows(), kStripRows) * words_), 0);
  if (!cells_.empty()) look_at_cells();
  whole_ = seen_by_all_.first <= keys.first && seen_by_all_.last >= keys.last;
  if (whole_ && cells_.empty()) {
    for (size_t n = 0; n < strips_.size(); ++n) {
      const auto word = static_cast<int64_t>(n) % words_;
      strips_[n] = bits_between(0, cells, word * kCellsOfBits);
    }
    return true;
  }
  uint64_t any = 0;
  for (int64_t r = 0; r < block_.rows(); ++r) {
    const auto first = std::max<int64_t>(row(r).first_key - keys.first, 0);
    const auto last = std::min(row(r).last_key - keys.first, width());
    if (first >= last) continue;
    for (int64_t word = 0; word < words_; ++word) {
      const auto start = word * kCellsOfBits;
      auto seen = bits_between(first / kCellKeys, ceil_div(last, kCellKeys), start);
      if (!cells_.empty()) {
        const auto& bits = cells_[static_cast<size_t>(r * words_ + word)];
        whole_ = whole_ && bits.all == bits_between(0, cells, start);
        seen &= bits.any;
      }
      strips_[static_cast<size_t>(r / kStripRows * words_ + word)] |= seen;
      any |= seen;
    }
  }
  return any != 0;
}

void Tile::look_at_cells() {
  const auto& visibility = layout_.visibility();
  const auto first = keys_.first / kCellKeys;
  const auto count = ceil_div(width(), kCellKeys);
  for (int64_t r = 0; r < block_.rows(); ++r) {
    auto* bits = cells_.data() + r * words_;
    const bool as_before =
        r > 0 && row(r).mask == row(r - 1).mask && row(r).document == row(r - 1).document;
    if (as_before) {
      std::copy_n(bits - words_, words_, bits);
      continue;
    }
    const auto head = block_.first_head + r / block_.queries;
    const auto query = block_.first_query + r % block_.queries;
    for (int64_t word = 0; word < words_; ++word) {
      const auto cell = word * kCellsOfBits;
      bits[word] = visibility.cells(block_.batch, head, query, first + cell,
                                    std::min(count - cell, kCellsOfBits));
    }
  }
}

/// Appends [first, last), to the last run if that ends there.
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
