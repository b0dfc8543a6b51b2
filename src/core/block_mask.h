// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/block_mask.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/ceil_div.h"

/// The bits of a BlockMask:
///
///                 tiles of 64 keys
///   64 queries   | full | full | part |      |      |     full    a run of tiles: 24 bytes
///   64 queries   | full | full | full | part |      |     part    a run of tiles, and a word for
///   64 queries   |      | full | full | full | part |             each query and tile
///                                                         hidden  nothing
///
/// Each row of tiles has a list of its runs, in the order of keys.

namespace heed::detail {

/// The constant state of a BlockMask.
class BlockMaskBits {
 public:
  static constexpr int64_t kTile = BlockMask::kTile;

  /// Makes the bits in parallel. The sizes must have been checked.
  BlockMaskBits(const std::array<int64_t, 4>& sizes, const WriteTile& write);

  const std::array<int64_t, 4>& sizes() const { return sizes_; }
  int64_t tiles() const { return static_cast<int64_t>(rows_.size()) * columns_; }
  int64_t full_tiles() const { return full_; }
  int64_t partial_tiles() const { return partial_; }
  int64_t nbytes() const;
  /// Whether some query does not see all keys.
  bool hides() const { return full_ < tiles(); }

  /// The bits of a tile's keys that exist.
  uint64_t existing(int64_t tile) const {
    return ~uint64_t{0} >> (kTile - std::min(kTile, sizes_[3] - tile * kTile));
  }

  /// Calls visit(tile, words) for each tile of [first, last) that is not hidden, in row `row` of
  /// the tiles of head h of batch b. `words` has a word for each query of the row; it is null if
  /// the tile is full.
  template <typename Visit>
  void for_each_seen(int64_t b, int64_t h, int64_t row, int64_t first, int64_t last,
                     const Visit& visit) const {
    const auto& own = tile_row(b, h, row);
    auto run = std::upper_bound(own.runs.begin(), own.runs.end(), first,
                                [](int64_t tile, const Run& run) { return tile < run.last; });
    for (; run != own.runs.end() && run->first < last; ++run) {
      const auto end = std::min(run->last, last);
      for (auto tile = std::max(run->first, first); tile < end; ++tile) {
        visit(tile, run->word == kFull
                        ? nullptr
                        : own.words.data() + run->word + (tile - run->first) * tile_queries_);
      }
    }
  }

  /// Bit n, for n < count <= 64: whether query i sees key `first` + n.
  uint64_t keys(int64_t b, int64_t h, int64_t i, int64_t first, int64_t count) const;

  /// The elements of some queries and keys: bool [B, H, queries, keys] on the CPU.
  at::Tensor dense(int64_t first_query, int64_t queries, int64_t first_key, int64_t keys) const;

 private:
  static constexpr int64_t kFull = -1;
  /// Tiles [first, last) that are all full, or all partly seen.
  struct Run {
    int64_t first, last;
    int64_t word;  // of the first query and tile in `words`, or kFull
  };
  struct TileRow {
    std::vector<Run> runs;
    std::vector<uint64_t> words;  // of the partial tiles: [tiles, tile_queries_]
  };

  const TileRow& tile_row(int64_t b, int64_t h, int64_t row) const {
    const auto at = [](int64_t size, int64_t index) { return size == 1 ? 0 : index; };
    return rows_[static_cast<size_t>(
        (at(sizes_[0], b) * sizes_[1] + at(sizes_[1], h)) * rows_of_head_ + row)];
  }
  TileRow make_row(int64_t b, int64_t h, int64_t row, const WriteTile& write) const;

  std::array<int64_t, 4> sizes_;
  int64_t rows_of_head_, columns_;  // tiles of a head; 0 if the mask has no elements
  int64_t tile_queries_;            // words of a partial tile
  std::vector<TileRow> rows_;       // [B, H, rows_of_head_]
  int64_t full_ = 0, partial_ = 0;
};

}  // namespace heed::detail
