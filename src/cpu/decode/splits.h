// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace heed::detail {

/// Cuts keys into splits of about the same length. A column is the keys of a sequence that are
/// read together, for one group or for all. Columns lie one after the other, and a split may end
/// within one. Splits depend only on the keys and their cost, so the result does not depend on
/// threads.
class Splits {
 public:
  /// keys[n] are the keys of each of columns [n * columns, (n + 1) * columns). One key of a column
  /// costs key_cost multiply-adds.
  Splits(std::vector<KeyRange> keys, int64_t columns, int64_t key_cost);

  /// The cost of all splits in multiply-adds.
  double cost() const { return cost_; }
  int64_t count() const { return static_cast<int64_t>(cuts_.size()) - 1; }
  /// How many parts the columns that are cut have. Each has a number.
  int64_t parts() const { return cuts_.back().part; }
  /// Stands for the number of a part that is a whole column.
  static constexpr int64_t kWhole = -1;
  /// Calls visit(column, keys, number) for each part of a split; there is at least one.
  template <typename Visit>
  void for_each_part(int64_t split, const Visit& visit) const {
    const auto& begin = cuts_[static_cast<size_t>(split)];
    const auto& end = cuts_[static_cast<size_t>(split + 1)];
    for (auto column = begin.column; column < end.column + (end.within ? 1 : 0); ++column) {
      const bool begins_within = column == begin.column && begin.within;
      const bool ends_within = column == end.column;
      const auto& keys = of_column(column);
      visit(column,
            KeyRange{begins_within ? begin.key : keys.first, ends_within ? end.key : keys.last},
            begins_within ? begin.part
            : ends_within ? end.part - 1
                          : kWhole);
    }
  }
  struct Parts {
    int64_t first, last;  // [first, last)
  };
  /// The numbers of a column's parts, in order; an empty range if the column is whole.
  Parts parts_of(int64_t column) const;

 private:
  /// The beginning of a split.
  struct Cut {
    int64_t column, key;
    int64_t part;  // number of the part that begins here if `within`, else of the next
    bool within;   // inside the column rather than at its beginning
  };
  const KeyRange& of_column(int64_t column) const {
    return keys_[static_cast<size_t>(column / columns_)];
  }

  std::vector<KeyRange> keys_;
  int64_t columns_;
  double cost_ = 0;
  std::vector<Cut> cuts_;  // [splits + 1]: the beginning of each split, the end of the last
};

}  // namespace heed::detail
