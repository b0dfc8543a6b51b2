#pragma once

#include <algorithm>
#include <vector>

#include "cpu/block/layout.h"

namespace heed::detail {

/// Runs of a tile's rows or columns as those of operands, which begin and end in whole ones.
template <typename Operand>
std::vector<DepthRun> operand_runs(std::vector<DepthRun> runs) {
  for (auto& run : runs) run = {operands<Operand>(run.first), operands<Operand>(run.count)};
  return runs;
}

/// A block of queries and a block of keys, and the part of their scores that is computed: it has
/// all that the queries see, in cells of kCellKeys keys by strips of kStripRows rows. What the rest
/// would add to any sum is 0, so that results do not depend on it.
class Tile {
 public:
  explicit Tile(const BlockLayout& layout)
      : layout_(layout),
        rows_(static_cast<size_t>(layout.block_rows())),
        cells_(static_cast<size_t>(layout.hides() ? layout.block_rows() * words_of(layout) : 0)) {}

  void set_rows(const RowBlock& block) {
    block_ = block;
    layout_.describe_rows(block, rows_.data());
    seen_by_all_ = {0, layout_.problem().key_length()};
    for (int64_t r = 0; r < block.rows(); ++r) {
      seen_by_all_.first = std::max(seen_by_all_.first, row(r).first_key);
      seen_by_all_.last = std::min(seen_by_all_.last, row(r).last_key);
    }
  }
  /// False if the rows see none of these keys. The first is the first of a cell.
  bool set_keys(KeyRange keys);

  const RowBlock& block() const { return block_; }
  const QueryRow& row(int64_t r) const { return rows_[static_cast<size_t>(r)]; }
  KeyRange keys() const { return keys_; }
  int64_t width() const { return keys_.last - keys_.first; }
  /// Whether every row sees every key.
  bool is_whole() const { return whole_; }

  /// Whether these rows have a strip in which nothing is hidden: all its rows see all keys of its
  /// cells, which have 16.
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

  /// For products that have the tile's columns: visit(row, rows, column, columns), `column` a
  /// multiple of kColumnMultiple.
  template <typename Visit>
  void for_each_part(const Visit& visit) {
    for_each_strip([&](int64_t row, int64_t rows, const uint64_t* strip) {
      for (const auto& run : column_runs(strip, {0, width()})) {
        visit(row, rows, run.first, run.count);
      }
    });
  }

  /// For products that sum over columns: visit(row, rows, runs of columns), for `most` columns at a
  /// time.
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

  /// For products that sum over rows: visit(column, columns, runs of rows). Of tiles of at most 64
  /// cells by 64 strips.
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
  CellBits cells_of(int64_t first_row, int64_t last_row, int64_t word) const;
  const std::vector<DepthRun>& column_runs(const uint64_t* strip, KeyRange columns);
  /// A bit for each strip: whether it has the cell.
  uint64_t strips_of(int64_t cell) const;
  const std::vector<DepthRun>& row_runs(uint64_t strips);
  void add_to_runs(int64_t first, int64_t last);

  /// Strips that are alike are one.
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
  KeyRange seen_by_all_{};  // according to causal, window and lengths
  std::vector<QueryRow> rows_;
  std::vector<CellBits> cells_;  // [rows, words]; empty if neither mask nor documents hide anything
  int64_t words_ = 0;
  std::vector<uint64_t> strips_;  // [strips, words]: the cells that are computed
  std::vector<DepthRun> runs_;
  uint64_t unhidden_strips_ = 0;  // see ScoreTile::unhidden
  bool whole_ = false;
};

}  // namespace heed::detail
