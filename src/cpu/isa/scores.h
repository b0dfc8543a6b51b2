// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdint.h>

#include "cpu/isa/matrix.h"

namespace heed::detail {

/// The number of keys in a cell of a strip or a mask.
constexpr int64_t kCellKeys = kColumnMultiple;

/// Which of 64 cells a query sees, a bit for each, the first cell in the lowest bit. Bits of cells
/// past the last key are 0.
struct CellBits {
  uint64_t any = 0;  ///< whether the query may see a key of the cell
  uint64_t all = 0;  ///< whether the query sees all keys of the cell
};

constexpr int64_t kCellsOfBits = 64;

/// Query rows in a strip. Products compute the cells that some row of the strip sees.
constexpr int64_t kStripRows = 16;

constexpr int64_t kKeysOfBits = 64;

/// One query: which keys it sees, and what is added to its scores.
struct QueryRow {
  int64_t first_key, last_key;  ///< causal, windows and lengths let it see [first_key, last_key)
  const uint64_t* mask;         ///< a bit for each key, 0 if it is hidden; null: no mask
  int64_t mask_key = 0;         ///< the key of the mask's first bit, a multiple of kKeysOfBits
  const uint64_t* global;  ///< a bit for each key, 1 if windows do not hide it; null: none does
  int64_t window_first, window_last;  ///< the keys of its window, if there are global ones
  const int64_t* key_documents;       ///< of all keys, from key 0 on; null: no documents
  int64_t document;                   ///< of the query, which sees only keys of the same document
  const void* bias;                   ///< of all keys, from key 0 on; null: no bias
  uint32_t head, index;               ///< b * H + h and i, which determine its random numbers
  int64_t position;                   ///< of the query among the keys
  double alibi_slope;                 ///< scores get -slope * |position - key|; 0: no ALiBi
  const void* relative_bias;          ///< [2 R + 1] in the type of the scores; null: none
  /// Scores get element clamp(key's relative position - relative_position, -R, R) + R.
  int64_t relative_position;
  const int64_t* relative_keys;  ///< of all keys, from key 0 on; null: they are the keys' indices
  /// In the backward pass, if they are wanted: sums of the gradients of `relative_bias`, and of the
  /// slope, in the type of the scores.
  void* relative_sums;
  void* slope_sum;
};

/// Counter-based dropout (philox.h). The random number of a weight depends only on `key` and on
/// the weight's (b, h, i, j).
struct DropoutDraws {
  uint64_t key;
  int64_t first_key;   ///< j of key 0
  uint32_t threshold;  ///< a weight is dropped if its 32-bit random number is less; 0: no dropout
};

/// The form in which the kernels leave the weights of a tile.
enum class WeightForm {
  numbers,
  pairs,           ///< BFloat16Pair, in the memory of the scores
  training_pairs,  ///< pairs; `sum` too is of rounded weights, which the backward pass recomputes
};

/// Settings that all rows of a call share.
struct ScoreFormat {
  WeightForm weights;
  bool changes_scores;  ///< whether there is a softcap, ALiBi or a bias of any kind
  int64_t bias_stride;
  ElementType bias_type;
  int64_t relative_reach;  ///< R of relative biases
  DropoutDraws dropout;
  double softcap;        ///< 0: none
  bool through_softcap;  ///< whether gradients are of the scores before the cap, else after it
  bool sums_distances;   ///< whether rows have relative_sums or a slope_sum
  bool clears_all;       ///< whether all hidden weights become 0, else those that products read
};

/// Scores of `count` queries against the keys [first_key, first_key + width).
template <typename T>
struct ScoreTile {
  const ScoreFormat& format;
  const QueryRow* rows;
  int64_t count;
  int64_t first_key, width;
  T* scores;              ///< [count, stride]; width rounded up to kColumnMultiple is written
  int64_t stride;         ///< at most kMaxTileWidth, except for a softmax without dropout
  const CellBits* cells;  ///< [count, words]: what mask and documents show to each row; null: all
  const uint64_t* read;   ///< [strips, words]: the cells that products read; null: all
  int64_t words;          ///< number of words that hold a bit for each cell of the tile
  /// [count, kColumnMultiple]: Product::lane_maxima of the product that computed the scores, if
  /// nothing changes them before the softmax; else null.
  const T* lane_maxima = nullptr;
  uint64_t unhidden = 0;  ///< a bit for each strip: whether its rows see all columns that are read
};

constexpr int64_t kMaxTileWidth = 1024;

template <typename T>
struct ScoreKernelsOf {
  /// One step of the online softmax (Milakov and Gimelshein 2018). Replaces scores by the weights
  /// exp(score - largest), which are 0 where hidden or dropped. Updates each row's maximum
  /// `largest` and its `sum` of weights, dropped ones too, and multiplies rows of the output by
  /// exp(old largest - new largest). `largest` and `sum` have elements for all rows of whole
  /// strips. With training pairs, `largest` is the maximum rounded up to a multiple of ln 2: if it
  /// grows later, weights change by a power of 2, so they round alike.
  void (*softmax)(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row);
  /// Replaces scores by normalized weights, which are 0 where hidden or dropped, and the gradients
  /// of the weights by those of the scores. `largest` and `inverse_sum` are the final results of
  /// `softmax`; `delta` is the sum over keys of weight times gradient.
  ///
  /// With training pairs, `scores` and `gradients` have an even number of rows, and pairs
  /// overwrite their floats:
  ///
  ///     scores, row 2 i        weights of rows 2 i and 2 i + 1, a pair for each column
  ///     scores, row 2 i + 1    gradients of rows 2 i and 2 i + 1, a pair for each column
  ///     gradients, each row    gradients of columns 2 j and 2 j + 1, a pair for each j
  void (*softmax_backward)(const ScoreTile<T>& tile, const T* largest, const T* inverse_sum,
                           const T* delta, T* gradients);
};

struct ScoreKernels {
  ScoreKernelsOf<float> of_float;
  ScoreKernelsOf<double> of_double;
  /// Bit n: whether the mask shows key n, for n < count <= 64.
  uint64_t (*shown_keys)(const bool* mask, int64_t stride, int64_t count);
  /// Bits of the keys that a mask shows, for any number of them, and of their cells.
  void (*look_at_mask)(const bool* mask, int64_t stride, int64_t count, uint64_t* keys,
                       CellBits* cells);
  /// Writes a query's random words for keys [64 * block, 64 * (block + count)); see philox.h.
  void (*draw)(uint64_t key, uint32_t head, uint32_t index, int64_t block, int64_t count,
               uint32_t* words);
};

}  // namespace heed::detail
