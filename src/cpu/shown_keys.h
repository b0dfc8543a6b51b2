#pragma once

#include <cstdint>
#include <vector>

#include "core/block_mask.h"
#include "core/problem.h"
#include "cpu/isa/scores.h"

namespace heed::detail {

/// A word whose lowest `count` bits are 1; `count` is 1 to 64.
inline uint64_t first_bits(int64_t count) { return ~uint64_t{0} >> (64 - count); }

/// The keys that masks and documents show to each query of a call, as bits of single keys and of
/// cells of kCellKeys keys. Mask and documents are read once; a block mask has its own bits.
/// Drivers then skip hidden cells, and kernels look at single keys only in cells that are partly
/// hidden.
class ShownKeys {
 public:
  explicit ShownKeys(const Problem& problem);

  /// Whether masks or documents hide anything.
  bool hides() const { return mask_hides_ || has_block_mask() || documents_.defined(); }
  /// Whether masks may show different keys to different queries.
  bool mask_varies() const { return (mask_hides_ && rows_.queries > 1) || has_block_mask(); }
  bool has_block_mask() const { return block_mask_ != nullptr; }
  /// A bit for each key: whether the mask shows it to query i. Null if the mask hides nothing. With
  /// a block mask, `key_bits` takes its place.
  const uint64_t* mask(int64_t b, int64_t h, int64_t i) const {
    return mask_hides_ ? key_bits_.data() + rows_.index(b, h, i) * key_words_ : nullptr;
  }
  /// The documents of the queries, int64 [L], and of the keys, int64 [S]; null without documents.
  const int64_t* documents(int64_t b) const { return row_of(documents_, b); }
  const int64_t* key_documents(int64_t b) const { return row_of(key_documents_, b); }

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
    int64_t batches, heads, queries, words;
    std::vector<CellBits> cells;  // [batches, heads, queries, words]
    int64_t index(int64_t b, int64_t h, int64_t i) const {
      const auto at = [](int64_t size, int64_t index) { return size == 1 ? 0 : index; };
      return (at(batches, b) * heads + at(heads, h)) * queries + at(queries, i);
    }
    const CellBits* row(int64_t b, int64_t h, int64_t i) const {
      return cells.data() + index(b, h, i) * words;
    }
  };

  static const int64_t* row_of(const at::Tensor& ids, int64_t b) {
    if (!ids.defined()) return nullptr;
    return ids.const_data_ptr<int64_t>() + (ids.size(0) == 1 ? 0 : b * ids.size(1));
  }
  void look_at_mask(const at::Tensor& mask);
  void look_at_documents(const at::Tensor& documents, const at::Tensor& key_documents);
  /// Writes what `cells` would if there were only the block mask.
  void block_mask_cells(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count,
                        CellBits* to, int64_t stride) const;
  CellBits document_cells(int64_t b, int64_t document, int64_t cell, int64_t count) const;

  int64_t cell_count_;
  const BlockMaskBits* block_mask_ = nullptr;
  bool mask_hides_ = false;
  MaskRows rows_, blocks_;
  int64_t key_words_ = 0;
  std::vector<uint64_t> key_bits_;            // [batches, heads, queries, key_words_] of rows_
  at::Tensor documents_, key_documents_;      // int64 [B or 1, L], [B or 1, S]
  std::vector<Bounds> of_queries_, of_keys_;  // [B or 1, blocks], [B or 1, cells]
};

}  // namespace heed::detail
