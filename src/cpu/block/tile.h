// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/block/layout.h"

/// The cells of a tile that are computed: each has 16 keys by a strip of 16 rows.
///
///               cells
///   strip 0   | # | # | . |      # some row of the strip sees a key of the cell
///   strip 1   | # | # | . |      . no row does: not computed
///   strip 2   | # | . | # |
///
///   scores = Q K^T:        for each strip: for each run of #: one product
///   output += weights V:   for each strip: one product, whose depth is its runs of #
///   dV += weights^T dO:    for each cell:  one product, whose depth is the strips that have it
///
/// Neighboring strips with the same cells, or cells with the same strips, share a product.
/// docs/kernels.md, Block ("What is hidden is not computed").

namespace heed::detail {

/// Converts runs of a tile's rows or columns to runs of operands: half of them, rounded up, if
/// operands are pairs.
template <typename Operand>
std::vector<DepthRun> operand_runs(std::vector<DepthRun> runs) {
  for (auto& run : runs) run = {operands<Operand>(run.first), operands<Operand>(run.count)};
  return runs;
}

/// A block of queries, a block of keys, and those cells of their scores that are computed:
/// all of kCellKeys keys that some row of a strip of kStripRows rows sees. The rest would add 0 to
/// every sum, so results do not depend on it.
class Tile {
 public:
  explicit Tile(const BlockLayout& layout)
      : layout_(layout),
        rows_(static_cast<size_t>(layout.block_rows())),
        cells_(static_cast<size_t>(layout.hides() ? layout.block_rows() * words_of(layout) : 0)),
        row_words_(ceil_div(layout.block_keys(), kKeysOfBits) + 1),
        key_bits_(static_cast<size_t>(
            layout.shown_keys().has_block_mask() ? layout.block_rows() * row_words_ : 0)) {}

  void set_rows(const RowBlock& block) {
    block_ = block;
    layout_.describe_rows(block, rows_.data());
    seen_by_all_ = {0, layout_.problem().key_length()};
    for (int64_t r = 0; r < block.rows(); ++r) {
      seen_by_all_.first = std::max(seen_by_all_.first, row(r).first_key);
      seen_by_all_.last = std::min(seen_by_all_.last, row(r).last_key);
    }
  }
  /// Sets the keys, the first of which begins a cell. Returns false if the rows see none of them.
  bool set_keys(KeyRange keys);

  const RowBlock& block() const { return block_; }
  /// Calls visit(r, row) for each row, which it may change.
  template <typename Visit>
  void for_each_row(const Visit& visit) {
    for (int64_t r = 0; r < block_.rows(); ++r) visit(r, rows_[static_cast<size_t>(r)]);
  }
  const QueryRow& row(int64_t r) const { return rows_[static_cast<size_t>(r)]; }
  KeyRange keys() const { return keys_; }
  int64_t width() const { return keys_.last - keys_.first; }
  /// Whether every row sees every key.
  bool is_whole() const { return whole_; }

  /// Whether some strip of rows [row, row + rows) hides nothing: all of its rows see all keys of
  /// the cells that it computes, and each of these cells has kCellKeys keys.
  bool has_unhidden(int64_t row, int64_t rows) const {
    const auto first = row / kStripRows, last = ceil_div(row + rows, kStripRows);
    return (unhidden_strips_ >> first & first_bits(last - first)) != 0;
  }

  template <typename T>
  ScoreTile<T> scores(const ScoreFormat& format, T* scores, const T* lane_maxima = nullptr) const {
    return {format,
            rows_.data(),
            block_.rows(),
            keys_.first,
            width(),
            scores,
            layout_.tile_stride(),
            whole_ || cells_.empty() ? nullptr : cells_.data(),
            format.clears_all ? nullptr : strips_.data(),
            words_,
            lane_maxima,
            unhidden_strips_};
  }

  /// For products whose result is the tile: calls visit(row, rows, column, columns) for each run
  /// of cells that is computed. `column` is a multiple of kColumnMultiple.
  template <typename Visit>
  void for_each_run(const Visit& visit) {
    for_each_strip([&](int64_t row, int64_t rows, const uint64_t* strip) {
      for (const auto& run : column_runs(strip, {0, width()})) {
        visit(row, rows, run.first, run.count);
      }
    });
  }

  /// For products whose depth is the tile's columns: calls visit(row, rows, runs of columns), for
  /// at most `most` columns at a time.
  template <typename Visit>
  void for_each_sum_over_columns(int64_t most, const Visit& visit) {
    for_each_strip([&](int64_t row, int64_t rows, const uint64_t* strip) {
      for (auto key = keys_.first; key < keys_.last;) {
        const auto next = std::min((key / most + 1) * most, keys_.last);
        const auto& runs = column_runs(strip, {key - keys_.first, next - keys_.first});
        if (!runs.empty()) visit(row, rows, runs);
        key = next;
      }
    });
  }

  /// For products whose depth is the tile's rows: calls visit(column, columns, runs of rows). The
  /// tile has at most 64 cells and 64 strips.
  template <typename Visit>
  void for_each_sum_over_rows(const Visit& visit) {
    for (int64_t cell = 0; cell * kCellKeys < width();) {
      const auto strips = strips_of(cell);
      auto end = cell + 1;
      while (end * kCellKeys < width() && strips_of(end) == strips) ++end;
      const auto column = cell * kCellKeys;
      if (strips != 0) {
        visit(column, std::min(end * kCellKeys, width()) - column, row_runs(strips));
      }
      cell = end;
    }
  }

 private:
  static int64_t words_of(const BlockLayout& layout) {
    return ceil_div(ceil_div(layout.block_keys(), kCellKeys), kCellsOfBits);
  }
  void look_at_cells();
  /// Lets the rows' masks point to the bits of the tile's keys.
  void copy_key_bits();
  CellBits cells_of(int64_t first_row, int64_t last_row, int64_t word) const;
  const std::vector<DepthRun>& column_runs(const uint64_t* strip, KeyRange columns);
  /// A bit for each strip: whether it computes the cell.
  uint64_t strips_of(int64_t cell) const;
  const std::vector<DepthRun>& row_runs(uint64_t strips);
  void add_to_runs(int64_t first, int64_t last);

  /// Calls visit(row, rows, bits of the cells). Neighboring strips with the same cells are one.
  template <typename Visit>
  void for_each_strip(const Visit& visit) {
    const auto count = ceil_div(block_.rows(), kStripRows);
    for (int64_t strip = 0; strip < count;) {
      const auto* bits = strips_.data() + strip * words_;
      auto end = strip + 1;
      while (end < count && std::equal(bits, bits + words_, strips_.data() + end * words_)) ++end;
      const auto row = strip * kStripRows;
      visit(row, std::min(end * kStripRows, block_.rows()) - row, bits);
      strip = end;
    }
  }

  const BlockLayout& layout_;
  RowBlock block_{};
  KeyRange keys_{};
  KeyRange seen_by_all_{};  // keys that every row sees by causal, window and lengths
  std::vector<QueryRow> rows_;
  std::vector<CellBits> cells_;  // [rows, words]; empty unless mask or documents hide something
  // [rows, row_words_]: a bit for each of the tile's keys; empty without a block mask
  const int64_t row_words_;
  std::vector<uint64_t> key_bits_;
  int64_t words_ = 0;
  std::vector<uint64_t> strips_;  // [strips, words]: the cells that are computed
  std::vector<DepthRun> runs_;
  uint64_t unhidden_strips_ = 0;  // see ScoreTile::unhidden
  bool whole_ = false;
};

}  // namespace heed::detail
