#pragma once

#include <stdint.h>

#include "cpu/isa/matrix.h"

namespace heed::detail {

/// Which keys one query sees, and what is added to its scores.
struct QueryRow {
  int64_t first_key, last_key;  ///< causal and window let it see [first_key, last_key)
  const bool* mask;             ///< at key 0; null: none
  const void* bias;             ///< at key 0; null: none
  uint32_t head, index;         ///< b * H + h and i, which determine its random numbers
  int64_t position;             ///< among the keys
  double alibi_slope;           ///< subtracted from the score, times the distance; 0: none
};

/// Counter-based dropout: the random number of a weight depends only on `key` and the weight's (b,
/// h, i, j).
struct DropoutDraws {
  uint64_t key;
  int64_t first_key;   ///< j of key 0
  uint32_t threshold;  ///< a weight is dropped if its 32-bit random number is less; 0: no dropout
};

/// The values that are the same for all rows of a call.
struct ScoreFormat {
  double scale;         ///< factor on the scores, applied first
  bool pair_weights;    ///< whether weights of the softmax are written as BFloat16Pair, in place
  int64_t mask_stride;  ///< between neighboring keys
  int64_t bias_stride;
  ElementType bias_type;
  DropoutDraws dropout;
  double softcap;        ///< 0: none
  bool through_softcap;  ///< whether the gradients of scores are those before the cap, or after it
};

/// Scores of `count` queries against the keys [first_key, first_key + width).
template <typename T>
struct ScoreTile {
  const ScoreFormat& format;
  const QueryRow* rows;
  int64_t count;
  int64_t first_key, width;
  T* scores;       ///< [count, stride]; width rounded up to kColumnMultiple is written
  int64_t stride;  ///< at most kMaxTileWidth but for a softmax without dropout
};

constexpr int64_t kMaxTileWidth = 1024;

template <typename T>
struct ScoreKernelsOf {
  /// One step of the online softmax (Milakov and Gimelshein 2018). Replaces scores by weights
  /// before normalization; weights are 0 where hidden or dropped. `largest` and `sum` (of all
  /// weights, dropped ones too) are updated, and output's rows rescaled from the old largest to the
  /// new.
  void (*softmax)(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row);
  /// Replaces scores by normalized weights, which are 0 where hidden or dropped, and the gradients
  /// of the weights by those of the scores. `largest` and `inverse_sum` are the final results of
  /// `softmax`; `delta` is the sum over keys of weight times gradient.
  void (*softmax_backward)(const ScoreTile<T>& tile, const T* largest, const T* inverse_sum,
                           const T* delta, T* gradients);
};

struct ScoreKernels {
  ScoreKernelsOf<float> of_float;
  ScoreKernelsOf<double> of_double;
  /// The random numbers for keys [64 * group, 64 * (group + count)).
  void (*draw)(uint64_t key, uint32_t head, uint32_t index, int64_t group, int64_t count,
               uint32_t* words);
};

}  // namespace heed::detail
