// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/scores.h"

#include "core/ceil_div.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/philox.h"
#include "cpu/isa/tile_scores.h"

// The softmax of a tile's scores, forward and backward, between the products.
//
//   forward, for each strip of 16 rows:
//     scores  = scores changed by softcap, ALiBi and bias, -inf where hidden    # complete_rows
//     largest = max(largest, scores)                                            # update_largest
//     factor  = exp(old largest - largest)
//     output  = output * factor, if a row's largest score has grown             # scale_rows
//     scores  = weights exp(scores - largest)                                   # exponentiate_row
//     sum     = sum * factor + weights;  weights = 0 where dropped
//
//   backward, for each row:
//     weights   = exp(scores - largest) / sum
//     gradients = weights * (gradients of weights, 0 where dropped, - delta)    # backward_vector
//     weights   = 0 where dropped
//
// The lanes of the maxima and sums are reduced for all rows of a strip together (update_largest).
// Weights in pairs of bfloat16 overwrite their own scores, a pair in the memory of one float:
// | score 0 | score 1 | score 2 | .. becomes | weights 0, 1 | weights 2, 3 | ..
//
// The multiply units bound it: most operations are those of exp. See docs/kernels.md, "Block",
// "The softmax takes 16 rows at a time".

namespace heed::detail::HEED_ISA {

namespace {

/// Random words of a row, one for each column of the tile.
class RowDraws {
 public:
  template <typename T>
  RowDraws(const ScoreTile<T>& tile, const QueryRow& query, const Span& span)
      : threshold_(tile.format.dropout.threshold) {
    const int64_t first_key = tile.format.dropout.first_key + tile.first_key;
    const int64_t block = (first_key + span.aligned_first) / kDrawBlock;
    const int64_t last = first_key + span.aligned_last;
    draw_words(tile.format.dropout.key, query.head, query.index, block,
               ceil_div(last, kDrawBlock) - block, words_);
    of_column_ = words_ + (first_key - block * kDrawBlock);
  }

  /// x in lanes whose weights are kept, 0 in those whose weights are dropped.
  Vec<float> kept(int64_t column, Vec<float> x) const {
    return HEED_ISA::kept(of_column_ + column, threshold_, x);
  }
  Vec<double> kept(int64_t column, Vec<double> x) const {
    return HEED_ISA::kept(of_column_ + column, threshold_, x);
  }

 private:
  uint32_t threshold_;
  const uint32_t* of_column_ = nullptr;
  uint32_t words_[kMaxTileWidth + 2 * kDrawBlock];
};

template <typename T>
inline Vec<T> largest_scores(const T* row, const Span& span, Vec<T> lanes) {
#pragma GCC unroll 4
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    lanes = larger<T>(lanes, load(row + column));
  }
  return lanes;
}

constexpr auto kNumbers = WeightForm::numbers;
constexpr auto kPairs = WeightForm::pairs;
constexpr auto kTrainingPairs = WeightForm::training_pairs;

/// The place of the pair that begins with this even column. Packed pairs overwrite floats that
/// were already read.
inline BFloat16* pairs_at(float* row, int64_t column) {
  return reinterpret_cast<BFloat16*>(row + column / 2);
}

inline Vec<float> rounded(Vec<float> numbers) {
  BFloat16 elements[kLanes<float>];
  store_for_products(elements, numbers);
  return load(elements);
}

/// Rounds up to a multiple of ln 2. Scores beyond +-2^16 stay as they are: float is too coarse for
/// multiples of ln 2 there.
inline Vec<float> multiple_from(Vec<float> largest) {
  constexpr float kLn2 = 0.693147181F;
  const auto quotient = largest * kLog2OfE;
  const auto nearest = quotient + kRoundAndBias - kRoundAndBias;
  const auto multiple = (nearest < quotient ? nearest + 1 : nearest) * kLn2;
  return largest > -0x1p16F && largest < 0x1p16F ? multiple : largest;
}

/// exp(score - max), given score - max. With training pairs, the result is rounded to bfloat16.
template <WeightForm Form, typename T>
inline Vec<T> weights_of(Vec<T> scores) {
  if constexpr (Form == kPairs) {
    return short_exp_unclamped(scores);
  } else if constexpr (Form == kTrainingPairs) {
    return rounded(short_exp_unclamped(scores));
  } else {
    return exp_unclamped(scores);
  }
}

/// Replaces scores by weights and returns `sum` plus all weights. Stores kept(column, weights), in
/// which dropped weights are 0.
template <WeightForm Form, typename T, typename Kept>
inline Vec<T> exponentiate(T* row, const Span& span, T largest, Vec<T> sum, const Kept& kept) {
  const auto weights_at = [&](int64_t column) {
    const auto weights = weights_of<Form, T>(load(row + column) - largest);
    sum += weights;
    return kept(column, weights);
  };
  const int64_t last = span.aligned_last;
  int64_t column = span.aligned_first;
  if constexpr (Form != kNumbers) {
#pragma GCC unroll 2
    for (; column + 2 * kLanes<T> <= last; column += 2 * kLanes<T>) {
      const auto first = weights_at(column);
      store_for_products(pairs_at(row, column), first, weights_at(column + kLanes<T>));
    }
    if (column < last) store_for_products(pairs_at(row, column), weights_at(column));
    return sum;
  }
  // exp has a long latency. ARM's processors look too few instructions ahead to hide it, and
  // compilers move no load before a store. So several vectors are computed before one is stored.
  constexpr int64_t kTogether = kVectorBytes == 16 && kRegisters == 32 ? 4 : 1;
  for (; kTogether > 1 && column + kTogether * kLanes<T> <= last; column += kTogether * kLanes<T>) {
    Vec<T> weights[kTogether];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kTogether; ++i) weights[i] = weights_at(column + i * kLanes<T>);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kTogether; ++i) store(row + column + i * kLanes<T>, weights[i]);
  }
#pragma GCC unroll 4
  for (; column < last; column += kLanes<T>) store(row + column, weights_at(column));
  return sum;
}

/// Not inlined, so that calls without dropout need no memory for random words.
template <WeightForm Form, typename T>
__attribute__((noinline)) Vec<T> exponentiate_with_dropout(const ScoreTile<T>& tile, int64_t r,
                                                           T* row, const Span& span, T largest,
                                                           Vec<T> sum) {
  const RowDraws draws(tile, tile.rows[r], span);
  return exponentiate<Form>(row, span, largest, sum, [&](int64_t column, Vec<T> weights) {
    return draws.kept(column, weights);
  });
}

/// Applies softcap, ALiBi, bias and hiding to a row's scores. Returns the maximum of each lane.
template <typename T>
inline Vec<T> complete_row(const ScoreTile<T>& tile, int64_t r, T* row) {
  const auto range = visible(tile, tile.rows[r]);
  if (tile.format.changes_scores) change_scores(tile, r, range, row);
  hide_scores(tile, r, range, row);
  auto lanes = broadcast(-kInfinity<T>);
  for_each_seen(tile, r, range,
                [&](const Span& span) { lanes = largest_scores(row, span, lanes); });
  return lanes;
}

/// Replaces a row's scores by weights. Returns the sum of each lane.
template <WeightForm Form, typename T>
inline Vec<T> exponentiate_row(const ScoreTile<T>& tile, int64_t r, T* row, T largest) {
  const auto range = visible(tile, tile.rows[r]);
  Vec<T> sum = {};
  for_each_seen(tile, r, range, [&](const Span& span) {
    const auto all = [](int64_t, Vec<T> weights) { return weights; };
    sum = tile.format.dropout.threshold == 0
              ? exponentiate<Form>(row, span, largest, sum, all)
              : exponentiate_with_dropout<Form>(tile, r, row, span, largest, sum);
  });
  clear_hidden<Form == kNumbers ? 1 : 2>(tile, r, range, row);
  return sum;
}

/// complete_row and exponentiate_row for tiles that go by strips: visit the vectors of `strip`.
/// @{
template <typename T>
inline Vec<T> complete_row(const ScoreTile<T>& tile, int64_t r, const StripVectors<T>& strip,
                           T* row) {
  const auto keys = seen_keys_of(tile, r);
  if (tile.format.changes_scores) change_scores(tile, r, keys.within, row);
  auto lanes = broadcast(-kInfinity<T>);
#pragma GCC unroll 4
  for (int64_t n = 0; n < strip.count; ++n) {
    const auto scores = seen_scores(tile, keys, strip.columns[n], row);
    store(row + strip.columns[n], scores);
    lanes = larger<T>(lanes, scores);
  }
  return lanes;
}

template <WeightForm Form, typename T>
inline Vec<T> exponentiate_row(const StripVectors<T>& strip, T* row, T largest) {
  Vec<T> sum = {};
#pragma GCC unroll 4
  for (int64_t n = 0; n < strip.count; ++n) {
    const auto column = strip.columns[n];
    const auto weights = weights_of<Form, T>(load(row + column) - largest);
    sum += weights;
    if constexpr (Form == kNumbers) {
      store(row + column, weights);
    } else {
      store_for_products(pairs_at(row, column), weights);
    }
  }
  return sum;
}
/// @}

/// Completes the scores of the `count` rows of a strip whose first row is `first`. lanes[r]
/// becomes the maximum of each lane of a row. `strip` is null if the tile does not go by strips.
template <typename T>
inline void complete_rows(const ScoreTile<T>& tile, int64_t first, int64_t count,
                          const StripVectors<T>* strip, Vec<T>* lanes) {
  const bool unhidden = (tile.unhidden >> (first / kStripRows) & 1U) != 0;
  if (unhidden && tile.lane_maxima != nullptr) {
    const T* maxima = tile.lane_maxima + first * kColumnMultiple;
    for (int64_t r = 0; r < count; ++r) lanes[r] = load(maxima + r * kColumnMultiple);
    return;
  }
  for (int64_t r = 0; r < count; ++r) {
    T* row = tile.scores + (first + r) * tile.stride;
    lanes[r] = strip == nullptr ? complete_row(tile, first + r, row)
                                : complete_row(tile, first + r, *strip, row);
  }
}

/// Updates `largest` of a strip's rows by the maxima in their lanes. Writes `shifts`, which are to
/// be subtracted from scores, and `factors`, by which sums and outputs so far are to be
/// multiplied. Returns whether a factor is less than 1 in a row whose old maximum is not -inf.
template <WeightForm Form, typename T>
inline bool update_largest(Vec<T>* lanes, T* largest, T* shifts, T* factors) {
  auto smallest = broadcast(T{1});
  for (int64_t r = 0; r < kStripRows; r += kLanes<T>) {
    const auto before = load(largest + r);
    auto now = reduce_each<T>(lanes + r, larger<T>);
    const auto grows = now > before;
    if constexpr (Form == kTrainingPairs) now = multiple_from(now);
    now = grows ? now : before;
    // If a row has seen nothing, exp(-inf - 0) makes every weight 0 rather than NaN.
    const auto shift = now == -kInfinity<T> ? Vec<T>{} : now;
    const auto factor = exp_unclamped(before - shift);
    store(largest + r, now);
    store(shifts + r, shift);
    store(factors + r, factor);
    smallest = before > -kInfinity<T> && factor < smallest ? factor : smallest;
  }
  return reduce<T>(smallest, [](Vec<T> a, Vec<T> b) { return b < a ? b : a; }) < 1;
}

template <typename T>
inline void scale_rows(const T* factors, int64_t count, T* rows, int64_t columns) {
  for (int64_t r = 0; r < count; ++r, rows += columns) {
    for (int64_t column = 0; column < columns; ++column) rows[column] *= factors[r];
  }
}

template <WeightForm Form, typename T>
void softmax_tile(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row) {
  const bool by_strips = goes_by_strips(tile);
  StripVectors<T> strip;
  // All rows of a strip take a step before the next one begins, so that a row's weights need not
  // wait for its maximum.
  for (int64_t first = 0; first < tile.count; first += kStripRows) {
    if (!reads_any(tile, first)) continue;
    if (by_strips) strip.find(tile, first);
    const int64_t count = tile.count - first < kStripRows ? tile.count - first : kStripRows;
    Vec<T> lanes[kStripRows];
    for (int64_t r = count; r < kStripRows; ++r) lanes[r] = Vec<T>{};
    complete_rows(tile, first, count, by_strips ? &strip : nullptr, lanes);
    T shifts[kStripRows], factors[kStripRows];
    if (update_largest<Form>(lanes, largest + first, shifts, factors)) {
      scale_rows(factors, count, output + first * output_row, output_row);
    }
    for (int64_t r = 0; r < count; ++r) {
      T* row = tile.scores + (first + r) * tile.stride;
      lanes[r] = by_strips ? exponentiate_row<Form>(strip, row, shifts[r])
                           : exponentiate_row<Form>(tile, first + r, row, shifts[r]);
    }
    for (int64_t r = 0; r < kStripRows; r += kLanes<T>) {
      T* to = sum + first + r;
      const auto weights = reduce_each<T>(lanes + r, [](Vec<T> a, Vec<T> b) { return a + b; });
      store(to, load(to) * load(factors + r) + weights);
    }
  }
}

template <typename T>
void softmax(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row) {
  if constexpr (kMultipliesBFloat16 && kSame<T, float>) {
    if (tile.format.weights == kPairs) {
      return softmax_tile<kPairs>(tile, largest, sum, output, output_row);
    }
    if (tile.format.weights == kTrainingPairs) {
      return softmax_tile<kTrainingPairs>(tile, largest, sum, output, output_row);
    }
  }
  softmax_tile<kNumbers>(tile, largest, sum, output, output_row);
}

/// A row's maximum and 1 / sum from the forward pass, and its delta.
template <typename T>
struct RowStatistics {
  T largest, inverse_sum, delta;
};

/// Stores the weights of a vector of scores, and replaces the gradients of the weights by those of
/// the scores. kept(values) sets the lanes of dropped weights to 0.
template <WeightForm Form, typename T, typename Kept>
inline void backward_vector(Vec<T> scores, const RowStatistics<T>& of_row, T* weights, T* gradients,
                            const Kept& kept) {
  // Hidden scores have weight 0 and gradient 0, even if another factor is NaN.
  const auto hidden = scores == -kInfinity<T>;
  const auto exponentials = weights_of<Form, T>(scores - of_row.largest);
  const auto weight = hidden ? Vec<T>{} : exponentials * of_row.inverse_sum;
  const auto gradient = kept(load(gradients));
  store(gradients, hidden ? Vec<T>{} : weight * (gradient - of_row.delta));
  store(weights, kept(weight));
}

/// Calls backward_vector for each vector of a span. kept(column, values) sets the lanes of dropped
/// weights to 0.
template <WeightForm Form, typename T, typename Kept>
inline void backward_span(T* row, T* gradients, const Span& span, const RowStatistics<T>& of_row,
                          const Kept& kept) {
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    backward_vector<Form>(load(row + column), of_row, row + column, gradients + column,
                          [&](Vec<T> values) { return kept(column, values); });
  }
}

/// Not inlined, for the same reason as exponentiate_with_dropout.
template <WeightForm Form, typename T>
__attribute__((noinline)) void backward_span_with_dropout(const ScoreTile<T>& tile, int64_t r,
                                                          T* row, T* gradients, const Span& span,
                                                          const RowStatistics<T>& of_row) {
  const RowDraws draws(tile, tile.rows[r], span);
  backward_span<Form>(row, gradients, span, of_row,
                      [&](int64_t column, Vec<T> values) { return draws.kept(column, values); });
}

/// Replaces a row's scores by weights, and the gradients of its weights by those of its scores.
/// `strip` is null if the tile does not go by strips.
template <WeightForm Form, typename T>
void backward_row(const ScoreTile<T>& tile, int64_t r, const StripVectors<T>* strip,
                  const RowStatistics<T>& of_row, T* gradients) {
  T cap_slopes[kMaxTileWidth];
  const bool through_softcap = tile.format.softcap > 0 && tile.format.through_softcap;
  if (!reads_any(tile, r)) return;
  T* row = tile.scores + r * tile.stride;
  const auto range = visible(tile, tile.rows[r]);
  if (tile.format.changes_scores) {
    change_scores(tile, r, range, row, through_softcap ? cap_slopes : nullptr);
  }
  if (strip != nullptr) {
    const auto keys = seen_keys_of(tile, r);
#pragma GCC unroll 2
    for (int64_t n = 0; n < strip->count; ++n) {
      const auto column = strip->columns[n];
      backward_vector<Form>(seen_scores(tile, keys, column, row), of_row, row + column,
                            gradients + column, [](Vec<T> values) { return values; });
    }
  } else {
    hide_scores(tile, r, range, row);
    for_each_seen(tile, r, range, [&](const Span& span) {
      if (tile.format.dropout.threshold == 0) {
        backward_span<Form>(row, gradients, span, of_row,
                            [](int64_t, Vec<T> values) { return values; });
      } else {
        backward_span_with_dropout<Form>(tile, r, row, gradients, span, of_row);
      }
    });
    clear_hidden(tile, r, range, row);
    clear_hidden(tile, r, range, gradients);
  }
  if (tile.format.sums_distances) {
    for_each_seen(tile, r, range, [&](const Span& span) {
      add_to_relative_sums(tile, tile.rows[r], span, gradients);
      add_to_slope_sum(tile, tile.rows[r], span, gradients);
    });
  }
  if (!through_softcap) return;
  for_each_seen(tile, r, range, [&](const Span& span) {
    for (int64_t column = span.first; column < span.last; ++column) {
      // The slope at a hidden score may be NaN; its gradient stays 0.
      if (gradients[column] != 0) gradients[column] *= cap_slopes[column];
    }
  });
}

/// Lane i: the pair of first[i] and second[i], rounded to bfloat16.
inline Vec<BFloat16Pair> pairs_of_rows(Vec<float> first, Vec<float> second) {
  const auto bits = [](Vec<float> v) { return bit_cast<Vec<BFloat16Pair>>(v); };
  return bits(rounded(first)) >> 16 | bits(rounded(second));
}

/// Replaces rows r and r + 1 of weights and gradients by pairs, in the places that
/// ScoreKernelsOf::softmax_backward describes.
inline void pair_rows(const ScoreTile<float>& tile, int64_t r, float* gradients) {
  float* first = tile.scores + r * tile.stride;
  float* second = first + tile.stride;
  float* of_first = gradients + r * tile.stride;
  float* of_second = of_first + tile.stride;
  for_each_read(tile, r, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; column += kLanes<float>) {
      const auto weights = pairs_of_rows(load(first + column), load(second + column));
      const auto a = load(of_first + column);
      const auto b = load(of_second + column);
      __builtin_memcpy(first + column, &weights, sizeof(weights));
      const auto both = pairs_of_rows(a, b);
      __builtin_memcpy(second + column, &both, sizeof(both));
      store_for_products(pairs_at(of_first, column), a);
      store_for_products(pairs_at(of_second, column), b);
    }
  });
}

template <WeightForm Form, typename T>
void softmax_backward_tile(const ScoreTile<T>& tile, const T* largest, const T* inverse_sum,
                           const T* delta, T* gradients) {
  const bool by_strips = goes_by_strips(tile);
  StripVectors<T> strip;
  for (int64_t r = 0; r < tile.count; ++r) {
    if (by_strips && r % kStripRows == 0) strip.find(tile, r);
    backward_row<Form>(tile, r, by_strips ? &strip : nullptr,
                       {largest[r], inverse_sum[r], delta[r]}, gradients + r * tile.stride);
    if constexpr (Form == kTrainingPairs) {
      const bool is_first = r % 2 == 0, is_last = r + 1 == tile.count;
      if (is_first && is_last) {
        __builtin_memset(tile.scores + (r + 1) * tile.stride, 0, tile.stride * sizeof(T));
        __builtin_memset(gradients + (r + 1) * tile.stride, 0, tile.stride * sizeof(T));
      }
      if (!is_first || is_last) pair_rows(tile, r - r % 2, gradients);
    }
  }
}

template <typename T>
void softmax_backward(const ScoreTile<T>& tile, const T* largest, const T* inverse_sum,
                      const T* delta, T* gradients) {
  if constexpr (kMultipliesBFloat16 && kSame<T, float>) {
    if (tile.format.weights == kTrainingPairs) {
      return softmax_backward_tile<kTrainingPairs>(tile, largest, inverse_sum, delta, gradients);
    }
  }
  softmax_backward_tile<kNumbers>(tile, largest, inverse_sum, delta, gradients);
}

uint64_t shown_keys(const bool* mask, int64_t stride, int64_t count) {
  return nonzero_bytes(reinterpret_cast<const uint8_t*>(mask), stride, count);
}

/// Bit n: whether one of the bits [16 n, 16 n + 16) is 1.
inline uint64_t any_of_cells(uint64_t bits) {
  static_assert(kCellKeys == 16);
  if (bits == 0) return 0;
  if (bits == ~uint64_t{0}) return 0xfU;
  uint64_t found = 0;
  for (int64_t cell = 0; cell < 4; ++cell) {
    found |= uint64_t{(bits >> (cell * kCellKeys) & 0xffffU) != 0} << cell;
  }
  return found;
}

void look_at_mask(const bool* mask, int64_t stride, int64_t count, uint64_t* seen_by_row,
                  CellBits* cells) {
  constexpr int64_t kCells = kKeysOfBits / kCellKeys;
  for (int64_t key = 0; key < count; ++cells) {
    *cells = {};
    for (int64_t cell = 0; cell < kCellsOfBits && key < count; cell += kCells, key += kKeysOfBits) {
      const int64_t keys = count - key < kKeysOfBits ? count - key : kKeysOfBits;
      const auto existing = bits_of(0, keys);
      const auto seen = shown_keys(mask + key * stride, stride, keys);
      *seen_by_row++ = seen;
      const auto hidden = any_of_cells(existing & ~seen);
      cells->any |= any_of_cells(seen) << cell;
      cells->all |= (any_of_cells(existing) & ~hidden) << cell;
    }
  }
}

template <typename T>
constexpr ScoreKernelsOf<T> kKernels = {softmax<T>, softmax_backward<T>};

}  // namespace

const ScoreKernels score_kernels = {kKernels<float>, kKernels<double>, shown_keys, look_at_mask,
                                    draw_words};

}  // namespace heed::detail::HEED_ISA
