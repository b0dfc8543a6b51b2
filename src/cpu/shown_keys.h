// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_mask.h"
#include "core/problem.h"
#include "cpu/isa/scores.h"
#include "cpu/tensor_rows.h"

namespace heed::detail {

/// A word whose lowest `count` bits are 1; `count` is 1 to 64.
inline uint64_t first_bits(int64_t count) { return ~uint64_t{0} >> (64 - count); }

/// The word of bits [start, start + 64) in which bits [first, last) are 1.
inline uint64_t bits_between(int64_t first, int64_t last, int64_t start) {
  first = std::max<int64_t>(first - start, 0);
  last = std::min(last - start, kCellsOfBits);
  return first < last ? first_bits(last - first) << first : 0;
}

/// The cells that columns [first, last) touch (`any`) and cover (`all`): 64 of them, from cell
/// `start` on.
inline CellBits cells_between(int64_t first, int64_t last, int64_t start) {
  if (first >= last) return {};
  return {bits_between(first / kCellKeys, ceil_div(last, kCellKeys), start),
          bits_between(ceil_div(first, kCellKeys), last / kCellKeys, start)};
}

/// The keys that masks, documents, and windows that global tokens lift show to each query of a
/// call, as bits of single keys and of cells of kCellKeys keys. They are read once; a block mask
/// has its own bits. Drivers then skip hidden cells, and kernels look at single keys only in cells
/// that are partly hidden.
class ShownKeys {
 public:
  /// The problem must outlive this object.
  explicit ShownKeys(const Problem& problem);
  explicit ShownKeys(Problem&&) = delete;

  /// Whether any of them hides anything.
  bool hides() const {
    return mask_hides_ || has_block_mask() || documents_.defined() || has_global();
  }
  /// Whether global tokens lift windows.
  bool has_global() const { return !global_.empty(); }
  /// Whether masks may show different keys to different queries.
  bool mask_varies() const { return (mask_hides_ && rows_.queries > 1) || has_block_mask(); }
  bool has_block_mask() const { return block_mask_ != nullptr; }
  /// A bit for each key: whether the mask shows it to query i. Null if the mask hides nothing. With
  /// a block mask, `key_bits` takes its place.
  const uint64_t* mask(int64_t b, int64_t h, int64_t i) const {
    return mask_hides_ ? key_bits_.data() + rows_.index(mask_batch(b), h, i) * key_words_ : nullptr;
  }
  /// A bit for each key: whether it is global. Null for a query that is global itself, and without
  /// global tokens: then no window hides keys.
  const uint64_t* global(int64_t b, int64_t i) const {
    if (!has_global()) return nullptr;
    const auto& own = global_[static_cast<size_t>(b)];
    return own.is_global[i] ? nullptr : own.keys;
  }
  /// The documents of the queries, int64 [L], and of the keys, int64 [S]; null without documents.
  const int64_t* documents(int64_t b) const { return row_of_batch<int64_t>(documents_, b); }
  const int64_t* key_documents(int64_t b) const { return row_of_batch<int64_t>(key_documents_, b); }

  /// Writes words [words.first, words.last) of each query's bits of keys, which a block mask and
  /// the mask show, to `to`; those of the next query are `stride` after. There must be a block
  /// mask.
  void key_bits(int64_t b, int64_t h, KeyRange queries, KeyRange words, uint64_t* to,
                int64_t stride) const;
  /// Writes each query's bits of cells [cell, cell + count), count <= 64, to `to`; those of the
  /// next query are `stride` after.
  void cells(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count, CellBits* to,
             int64_t stride) const;
  /// A bit for each of cells [cell, cell + count), count <= 64: 0 if none of the queries sees the
  /// cell, 1 if one may.
  uint64_t may_see(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count) const;

 private:
  struct Bounds {
    int64_t least, most;
    bool have(int64_t id) const { return least <= id && id <= most; }
  };
  /// The cells that single queries see, or each kBlockQueries queries together. Dimensions that
  /// the mask broadcasts have size 1.
  struct MaskRows {
    int64_t heads, queries, words;
    std::vector<CellBits> cells;  // [batches, heads, queries, words]
    int64_t index(int64_t batch, int64_t h, int64_t i) const {
      const auto at = [](int64_t size, int64_t index) { return size == 1 ? 0 : index; };
      return (batch * heads + at(heads, h)) * queries + at(queries, i);
    }
    const CellBits* row(int64_t batch, int64_t h, int64_t i) const {
      return cells.data() + index(batch, h, i) * words;
    }
  };

  /// The batch of the mask that sequence b has. A mask that is expanded was read once.
  int64_t mask_batch(int64_t b) const {
    return problem_.mask.stride(0) == 0 ? 0 : problem_.score_batch(problem_.mask, b);
  }
  /// The global tokens of a sequence, and from where its windows are counted.
  struct GlobalTokens {
    const bool* is_global;  ///< [L], of its queries
    const uint64_t* keys;   ///< a bit for each key
    const CellBits* cells;  ///< of its keys
    int64_t first_position, key_count;
  };
  void look_at_mask(const at::Tensor& mask);
  void look_at_global_tokens();
  /// 64 cells that the windows of queries [queries.first, queries.last), or global keys, show.
  CellBits window_cells(const GlobalTokens& tokens, KeyRange queries, int64_t cell) const;
  void look_at_documents(const at::Tensor& documents, const at::Tensor& key_documents);
  /// Writes what `cells` would if there were only the block mask.
  void block_mask_cells(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count,
                        CellBits* to, int64_t stride) const;
  CellBits document_cells(int64_t b, int64_t document, int64_t cell, int64_t count) const;

  const Problem& problem_;
  int64_t key_length_, cell_count_;
  const BlockMaskBits* block_mask_ = nullptr;
  bool mask_hides_ = false;
  MaskRows rows_, blocks_;
  int64_t key_words_ = 0;
  std::vector<uint64_t> key_bits_;            // [batches, heads, queries, key_words_] of rows_
  std::vector<GlobalTokens> global_;          // [B]; empty: no global tokens
  at::Tensor global_rows_;                    // bool [B or 1, L], contiguous
  std::vector<uint64_t> global_bits_;         // [B or 1, words of keys]
  std::vector<CellBits> global_cells_;        // [B or 1, words of cells]
  at::Tensor documents_, key_documents_;      // int64 [B or 1, L], [B or 1, S]
  std::vector<Bounds> of_queries_, of_keys_;  // [B or 1, blocks], [B or 1, cells]
};

}  // namespace heed::detail
