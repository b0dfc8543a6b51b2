#pragma once

#include <stdint.h>

#include "cpu/isa/matrix.h"

namespace heed::detail {

/// Keys are looked at in cells of so many.
constexpr int64_t kCellKeys = kColumnMultiple;

/// What a query sees of 64 cells, the first in the lowest bits. Cells beyond the last key are not
/// seen.
struct CellBits {
  uint64_t any = 0;  ///< whether it may see a key of the cell
  uint64_t all = 0;  ///< whether it sees all of them
};

constexpr int64_t kCellsOfBits = 64;

/// Products take the cells that some of so many rows see.
constexpr int64_t kStripRows = 16;

constexpr int64_t kKeysOfBits = 64;

/// Which keys one query sees, and what is added to its scores.
struct QueryRow {
  int64_t first_key, last_key;   ///< causal, window and lengths let it see [first_key, last_key)
  const uint64_t* mask;          ///< a bit for each key: 0 where it is hidden; null: none
  const int64_t* key_documents;  ///< at key 0; null: none
  int64_t document;              ///< sees only keys of this one, if there are key_documents
  const void* bias;              ///< at key 0; null: none
  uint32_t head, index;          ///< b * H + h and i, which determine its random numbers
  int64_t position;              ///< among the keys
  double alibi_slope;            ///< subtracted from the score, times the distance; 0: none
};

/// Counter-based dropout: the random number of a weight depends only on `key` and the weight's (b,
/// h, i, j).
struct DropoutDraws {
  uint64_t key;
  int64_t first_key;   ///< j of key 0
  uint32_t threshold;  ///< a weight is dropped if its 32-bit random number is less; 0: no dropout
};

/// In what form the kernels leave the weights of a tile.
enum class WeightForm {
  numbers,
  pairs,           ///< as BFloat16Pair, in place
  training_pairs,  ///< all sums are of rounded weights too, which the backward pass computes again
};

/// The values that are the same for all rows of a call.
struct ScoreFormat {
  WeightForm weights;
  bool changes_scores;  ///< by softcap, ALiBi or a bias
  int64_t bias_stride;
  ElementType bias_type;
  DropoutDraws dropout;
  double softcap;        ///< 0: none
  bool through_softcap;  ///< whether the gradients of scores are those before the cap, or after it
  bool clears_all;       ///< whether rows are 0 wherever they see nothing, or where products read
};

/// Scores of `count` queries against the keys [first_key, first_key + width).
template <typename T>
struct ScoreTile {
  const ScoreFormat& format;
  const QueryRow* rows;
  int64_t count;
  int64_t first_key, width;
  T* scores;              ///< [count, stride]; width rounded up to kColumnMultiple is written
  int64_t stride;         ///< at most kMaxTileWidth but for a softmax without dropout
  const CellBits* cells;  ///< [count, words]: of the tile, as mask and documents have it; null: all
  const uint64_t* read;   ///< [strips, words]: results of other cells are not read; null: all are
  int64_t words;          ///< that have a bit for each cell
  /// [count, kColumnMultiple]: of the product of which these are the scores, if nothing changes
  /// them; else null.
  const T* lane_maxima = nullptr;
  uint64_t unhidden = 0;  ///< a bit for each strip: whether its rows see all columns that are read
};

constexpr int64_t kMaxTileWidth = 1024;

template <typename T>
struct ScoreKernelsOf {
  /// One step of the online softmax (Milakov and Gimelshein 2018). Replaces scores by weights
  /// before normalization; weights are 0 where hidden or dropped. `largest` and `sum` (of all
  /// weights, dropped ones too) are updated, and output's rows rescaled from the old largest to the
  /// new. Both have numbers for all rows of whole strips. With training pairs `largest` is a
  /// multiple of ln 2 that is not less: weights against a larger one are 2^-n times as large, and
  /// round alike.
  void (*softmax)(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row);
  /// Replaces scores by normalized weights, which are 0 where hidden or dropped, and the gradients
  /// of the weights by those of the scores. `largest` and `inverse_sum` are the final results of
  /// `softmax`; `delta` is the sum over keys of weight times gradient.
  ///
  /// As training pairs the tile lies in two memories of an even number of rows. Pairs of rows 2 i
  /// and 2 i + 1 are in `scores`: of weights in row 2 i, of gradients in row 2 i + 1. Pairs of
  /// columns are in `gradients`, of gradients only.
  void (*softmax_backward)(const ScoreTile<T>& tile, const T* largest, const T* inverse_sum,
                           const T* delta, T* gradients);
};

struct ScoreKernels {
  ScoreKernelsOf<float> of_float;
  ScoreKernelsOf<double> of_double;
  /// Which of the first `count` keys a mask shows: a bit for each of at most 64.
  uint64_t (*seen_keys)(const bool* mask, int64_t stride, int64_t count);
  /// The same of any number of keys, and by cells.
  void (*look_at_mask)(const bool* mask, int64_t stride, int64_t count, uint64_t* keys,
                       CellBits* cells);
  /// The random numbers for keys [64 * group, 64 * (group + count)).
  void (*draw)(uint64_t key, uint32_t head, uint32_t index, int64_t group, int64_t count,
               uint32_t* words);
};

}  // namespace heed::detail
