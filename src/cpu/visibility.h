#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "cpu/isa/scores.h"

namespace heed::detail {

/// The first `count` of 64 bits; at least one.
inline uint64_t first_bits(int64_t count) { return ~uint64_t{0} >> (64 - count); }

/// What mask and documents let the queries of a call see, by cells of kCellKeys keys. Each is
/// looked at once: drivers then pass over cells that are hidden, and kernels look at single keys
/// only in cells of which a part is.
class Visibility {
 public:
  explicit Visibility(const Problem& problem);

  /// Whether they hide anything.
  bool hides() const { return mask_hides_ || documents_.defined(); }
  /// Whether a mask may show other keys to one query than to another.
  bool mask_varies() const { return mask_hides_ && rows_.queries > 1; }
  /// A bit for each key: whether the mask shows it to query i. Null if the mask hides nothing.
  const uint64_t* mask(int64_t b, int64_t h, int64_t i) const {
    return mask_hides_ ? seen_keys_.data() + rows_.index(b, h, i) * key_words_ : nullptr;
  }
  /// int64 [L] and [S]; null without documents.
  const int64_t* documents(int64_t b) const { return row_of(documents_, b); }
  const int64_t* key_documents(int64_t b) const { return row_of(key_documents_, b); }

  /// Of `count` <= 64 cells, the first of which is `cell`, for each query; `stride` apart.
  void cells(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count, CellBits* to,
             int64_t stride) const;
  /// A bit for each of `count` <= 64 cells: 0 if none of these queries sees it; 1 is a guess.
  uint64_t may_see(int64_t b, int64_t h, KeyRange queries, int64_t cell, int64_t count) const;

 private:
  struct Bounds {
    int64_t least, most;
    bool have(int64_t id) const { return least <= id && id <= most; }
  };
  /// Rows of one query, or of kGroupQueries.
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
  CellBits document_cells(int64_t b, int64_t document, int64_t cell, int64_t count) const;

  int64_t cell_count_;
  bool mask_hides_ = false;
  MaskRows rows_, groups_;
  int64_t key_words_ = 0;
  std::vector<uint64_t> seen_keys_;           // [batches, heads, queries, key_words_], as rows_
  at::Tensor documents_, key_documents_;      // int64 [B or 1, L], [B or 1, S]
  std::vector<Bounds> of_queries_, of_keys_;  // [B or 1, groups], [B or 1, cells]
};

}  // namespace heed::detail
