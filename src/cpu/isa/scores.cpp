#include "cpu/isa/scores.h"

#include "cpu/isa/instruction_set.h"
#include "cpu/isa/philox.h"
#include "cpu/isa/simd.h"

namespace heed::detail::HEED_ISA {

namespace {

template <typename T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());

/// Neighboring columns of a tile, some of which a row sees, and the whole vectors that hold them.
struct Span {
  int64_t first, last;
  int64_t aligned_first, aligned_last;
  bool empty() const { return first >= last; }
};

template <typename T>
inline Span span_of(int64_t first, int64_t last) {
  return {first, last, first / kLanes<T> * kLanes<T>,
          (last + kLanes<T> - 1) / kLanes<T> * kLanes<T>};
}

/// What causal, window and lengths let the row see.
template <typename T>
inline Span visible(const ScoreTile<T>& tile, const QueryRow& row) {
  const int64_t first = row.first_key > tile.first_key ? row.first_key - tile.first_key : 0;
  const int64_t last = row.last_key - tile.first_key;
  return span_of<T>(first, last < tile.width ? last : tile.width);
}

/// Bits [first, first + count) of 64.
inline uint64_t bits_of(int64_t first, int64_t count) {
  return (count == kCellsOfBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
}

/// Calls visit(first, count) for the runs of ones.
template <typename Visit>
inline void for_each_run_of_bits(uint64_t bits, const Visit& visit) {
  while (bits != 0) {
    const int64_t first = __builtin_ctzll(bits);
    const uint64_t rest = ~(bits >> first);
    const int64_t count = rest == 0 ? kCellsOfBits : __builtin_ctzll(rest);
    visit(first, count);
    bits &= ~bits_of(first, count);
  }
}

/// Calls visit(first, last) with the columns of `within` in runs of those cells that `wanted(bits)`
/// picks.
template <typename T, typename Wanted, typename Visit>
inline void for_each_run_of_cells(const ScoreTile<T>& tile, int64_t r, const Span& within,
                                  const Wanted& wanted, const Visit& visit) {
  const CellBits* cells = tile.cells + r * tile.words;
  for (int64_t word = 0; word < tile.words; ++word) {
    for_each_run_of_bits(wanted(cells[word]), [&](int64_t first_cell, int64_t count) {
      const int64_t begin = (word * kCellsOfBits + first_cell) * kCellKeys;
      const int64_t end = begin + count * kCellKeys;
      const int64_t first = begin > within.first ? begin : within.first;
      const int64_t last = end < within.last ? end : within.last;
      if (first < last) visit(first, last);
    });
  }
}

/// Calls `visit` with the parts of `within` in which the row sees something.
template <typename T, typename Visit>
inline void for_each_seen(const ScoreTile<T>& tile, int64_t r, const Span& within,
                          const Visit& visit) {
  if (within.empty()) return;
  if (tile.cells == nullptr) return visit(within);
  for_each_run_of_cells(
      tile, r, within, [](CellBits bits) { return bits.any; },
      [&](int64_t first, int64_t last) { visit(span_of<T>(first, last)); });
}

template <typename T>
inline void fill(T* row, int64_t first, int64_t last, T value) {
  for (int64_t column = first; column < last; ++column) row[column] = value;
}

/// Zeros where the row sees nothing, so that products may pass over it. `Packing` columns take the
/// space of one.
template <int64_t Packing = 1, typename T>
inline void clear_hidden(const ScoreTile<T>& tile, int64_t r, const Span& within, T* row) {
  const auto clear = [&](int64_t first, int64_t last) {
    for (int64_t column = first; column < last; column += kLanes<T>) {
      __builtin_memset(row + column / Packing, 0, kVectorBytes / Packing);
    }
  };
  const int64_t end = (tile.width + kColumnMultiple - 1) / kColumnMultiple * kColumnMultiple;
  int64_t cleared = 0;
  for_each_seen(tile, r, within, [&](const Span& span) {
    clear(cleared, span.aligned_first);
    cleared = span.aligned_last;
  });
  clear(cleared, end);
}

template <typename T, typename Element>
inline void add_elements(const void* data, int64_t first_key, int64_t stride, const Span& span,
                         T* row) {
  const auto* bias = static_cast<const Element*>(data) + first_key * stride;
  int64_t column = span.first;
  if constexpr (sizeof(Element) == sizeof(T) || (sizeof(T) == 4 && sizeof(Element) == 2)) {
    for (; stride == 1 && column + kLanes<T> <= span.last; column += kLanes<T>) {
      store(row + column, load(row + column) + load(bias + column));
    }
  }
  for (; column < span.last; ++column) {
    row[column] += static_cast<T>(widen(bias[column * stride]));
  }
}

template <typename T>
inline void add_bias(const ScoreTile<T>& tile, const QueryRow& query, const Span& span, T* row) {
  if (query.bias == nullptr) return;
  const auto stride = tile.format.bias_stride;
  with_element(tile.format.bias_type, [&](auto element) {
    add_elements<T, decltype(element)>(query.bias, tile.first_key, stride, span, row);
  });
}

/// What a comparison of vectors gives: a lane is all ones where it is true.
template <typename T>
using Lanes = decltype(Vec<T>{} < Vec<T>{});

template <typename T>
inline Lanes<T> are_nonzero(const uint8_t* from) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes<T>)));
  Bytes bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(bytes, Lanes<T>) != 0;
}

template <typename T>
inline Lanes<T> are_equal(const int64_t* from, int64_t value) {
  typedef int64_t Numbers __attribute__((vector_size(kLanes<T> * sizeof(int64_t))));
  Numbers numbers;
  __builtin_memcpy(&numbers, from, sizeof(numbers));
  return __builtin_convertvector(numbers == value, Lanes<T>);
}

/// Hides columns [first, last) where a mask is 0.
template <typename T>
inline void hide_masked(const ScoreTile<T>& tile, const QueryRow& query, int64_t first,
                        int64_t last, T* row) {
  if (query.mask == nullptr) return;
  const auto stride = tile.format.mask_stride;
  const auto* mask = reinterpret_cast<const uint8_t*>(query.mask) + tile.first_key * stride;
  int64_t column = first;
  for (; stride == 1 && column + kLanes<T> <= last; column += kLanes<T>) {
    const auto score = load(row + column);
    store(row + column, are_nonzero<T>(mask + column) ? score : broadcast(-kInfinity<T>));
  }
  for (; column < last; ++column) {
    if (mask[column * stride] == 0) row[column] = -kInfinity<T>;
  }
}

/// Hides columns [first, last) of other documents than the row's.
template <typename T>
inline void hide_other_documents(const ScoreTile<T>& tile, const QueryRow& query, int64_t first,
                                 int64_t last, T* row) {
  if (query.key_documents == nullptr) return;
  const int64_t* documents = query.key_documents + tile.first_key;
  int64_t column = first;
  for (; column + kLanes<T> <= last; column += kLanes<T>) {
    const auto same = are_equal<T>(documents + column, query.document);
    store(row + column, same ? load(row + column) : broadcast(-kInfinity<T>));
  }
  for (; column < last; ++column) {
    if (documents[column] != query.document) row[column] = -kInfinity<T>;
  }
}

/// Hides what mask and documents hide in cells of which the row sees a part.
template <typename T>
inline void hide_in_cells(const ScoreTile<T>& tile, int64_t r, const Span& span, T* row) {
  if (tile.cells == nullptr) return;
  for_each_run_of_cells(
      tile, r, span, [](CellBits bits) { return bits.any & ~bits.all; },
      [&](int64_t first, int64_t last) {
        hide_masked(tile, tile.rows[r], first, last, row);
        hide_other_documents(tile, tile.rows[r], first, last, row);
      });
}

/// With `slopes` of a whole tile's width, also the cap's derivative at each score.
template <typename T>
inline void cap_scores(const ScoreTile<T>& tile, const Span& span, T* row, T* slopes) {
  const T cap = static_cast<T>(tile.format.softcap);
  if (cap == 0) return;
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    const auto fraction = tanh(load(row + column) / cap);
    store(row + column, cap * fraction);
    if (slopes != nullptr) store(slopes + column, 1 - fraction * fraction);
  }
}

template <typename T>
inline void add_alibi(const ScoreTile<T>& tile, const QueryRow& query, const Span& span, T* row) {
  if (query.alibi_slope == 0) return;
  const T slope = static_cast<T>(query.alibi_slope);
  const int64_t position = query.position - tile.first_key;
  // From the column next to the query: distances near it are small, and exact.
  const int64_t next = position < span.first  ? span.first
                       : position < span.last ? position
                                              : span.last;
  const T beyond = static_cast<T>(position - next);
  // 32 bits, for the compiler to vectorize.
  const auto near = static_cast<int32_t>(next);
  const auto last = static_cast<int32_t>(span.last);
  for (auto column = static_cast<int32_t>(span.first); column < last; ++column) {
    const T distance = beyond + static_cast<T>(near - column);
    row[column] -= slope * (distance < 0 ? -distance : distance);
  }
}

/// Whether the scores of the span are what the product left.
template <typename T>
inline bool is_complete(const ScoreTile<T>& tile, const QueryRow& query, const Span& span) {
  return span.first == span.aligned_first && span.last == span.aligned_last &&
         tile.cells == nullptr && tile.format.softcap == 0 && query.alibi_slope == 0 &&
         query.bias == nullptr;
}

/// Softcap, ALiBi, bias, mask and -inf in the lanes outside the span.
template <typename T>
inline void complete_scores(const ScoreTile<T>& tile, int64_t r, const Span& span, T* row,
                            T* cap_slopes = nullptr) {
  const auto& query = tile.rows[r];
  cap_scores(tile, span, row, cap_slopes);
  add_alibi(tile, query, span, row);
  add_bias(tile, query, span, row);
  hide_in_cells(tile, r, span, row);
  fill(row, span.aligned_first, span.first, -kInfinity<T>);
  fill(row, span.last, span.aligned_last, -kInfinity<T>);
}

/// A row's draws, read by column of the tile.
class RowDraws {
 public:
  template <typename T>
  RowDraws(const ScoreTile<T>& tile, const QueryRow& query, const Span& span)
      : threshold_(tile.format.dropout.threshold) {
    if (threshold_ == 0) return;
    const int64_t first_key = tile.format.dropout.first_key + tile.first_key;
    const int64_t group = (first_key + span.aligned_first) / kDrawGroup;
    const int64_t last = first_key + span.aligned_last;
    draw_words(tile.format.dropout.key, query.head, query.index, group,
               (last + kDrawGroup - 1) / kDrawGroup - group, words_);
    of_column_ = words_ + (first_key - group * kDrawGroup);
  }

  bool active() const { return threshold_ != 0; }

  /// x where the weight is kept, else 0.
  Vec<float> kept(int64_t column, Vec<float> x) const {
    return load(of_column_ + column) >= threshold_ ? x : Vec<float>{};
  }
  Vec<double> kept(int64_t column, Vec<double> x) const {
    typedef uint32_t Words __attribute__((vector_size(kVectorBytes / 2)));
    Words words;
    __builtin_memcpy(&words, of_column_ + column, sizeof(words));
    return __builtin_convertvector(words, Vec<uint64_t>) >= uint64_t{threshold_} ? x
                                                                                 : Vec<double>{};
  }

 private:
  uint32_t threshold_;
  const uint32_t* of_column_ = nullptr;
  uint32_t words_[kMaxTileWidth + 2 * kDrawGroup];
};

template <typename T>
inline T largest_score(const T* row, const Span& span, T largest) {
  auto lanes = broadcast(largest);
#pragma GCC unroll 4
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    const auto x = load(row + column);
    lanes = x > lanes ? x : lanes;
  }
  return reduce_max<T>(lanes);
}

constexpr auto kNumbers = WeightForm::numbers;
#ifdef __AVX512BF16__
constexpr auto kPairs = WeightForm::pairs;
constexpr auto kTrainingPairs = WeightForm::training_pairs;

/// Two vectors as pairs, which lie where half as many numbers were: all of them have been read.
inline void store_pairs(float* row, int64_t column, Vec<float> first, Vec<float> second) {
  const auto pairs = _mm512_cvtne2ps_pbh(second, first);
  __builtin_memcpy(row + column / 2, &pairs, sizeof(pairs));
}
inline void store_pairs(float* row, int64_t column, Vec<float> numbers) {
  const auto pairs = _mm512_cvtneps_pbh(numbers);
  __builtin_memcpy(row + column / 2, &pairs, sizeof(pairs));
}

inline Vec<float> rounded(Vec<float> numbers) {
  BFloat16 elements[kLanes<float>];
  const auto bits = _mm512_cvtneps_pbh(numbers);
  __builtin_memcpy(elements, &bits, sizeof(bits));
  return load(elements);
}

/// The least multiple of ln 2 that is not less, but for scores of which float has none.
inline float multiple_from(float largest) {
  constexpr float kLn2 = 0.693147181F;
  const bool small = largest > -0x1p16F && largest < 0x1p16F;
  return small ? __builtin_ceilf(largest * kLog2OfE) * kLn2 : largest;
}
#endif

/// Scores less the largest, or what stands for it, to weights.
template <WeightForm Form, typename T>
inline Vec<T> weights_of(Vec<T> scores) {
#ifdef __AVX512BF16__
  if constexpr (Form == kPairs) return short_exp_unclamped(scores);
  if constexpr (Form == kTrainingPairs) return rounded(short_exp_unclamped(scores));
#endif
  return exp_unclamped(scores);
}

/// Replaces scores by weights and returns `sum` plus all of them. What `kept(column, weights)` does
/// not keep is stored as 0.
template <WeightForm Form, typename T, typename Kept>
inline Vec<T> exponentiate(T* row, const Span& span, T largest, Vec<T> sum, const Kept& kept) {
  const auto weights_at = [&](int64_t column) {
    const auto weights = weights_of<Form, T>(load(row + column) - largest);
    sum += weights;
    return kept(column, weights);
  };
  const int64_t last = span.aligned_last;
  int64_t column = span.aligned_first;
#ifdef __AVX512BF16__
  if constexpr (Form != kNumbers) {
#pragma GCC unroll 2
    for (; column + 2 * kLanes<T> <= last; column += 2 * kLanes<T>) {
      const auto first = weights_at(column);
      store_pairs(row, column, first, weights_at(column + kLanes<T>));
    }
    if (column < last) store_pairs(row, column, weights_at(column));
    return sum;
  }
#endif
#pragma GCC unroll 4
  for (; column < last; column += kLanes<T>) store(row + column, weights_at(column));
  return sum;
}

/// Not inlined: where nothing is dropped, nothing should make room for the draws.
template <WeightForm Form, typename T>
__attribute__((noinline)) Vec<T> exponentiate_with_dropout(const ScoreTile<T>& tile, int64_t r,
                                                           T* row, const Span& span, T largest,
                                                           Vec<T> sum) {
  const RowDraws draws(tile, tile.rows[r], span);
  return exponentiate<Form>(row, span, largest, sum, [&](int64_t column, Vec<T> weights) {
    return draws.kept(column, weights);
  });
}

/// Completes a row's scores and returns the largest of them and `largest`.
template <typename T>
inline T complete_row(const ScoreTile<T>& tile, int64_t r, T* row, T largest) {
  for_each_seen(tile, r, visible(tile, tile.rows[r]), [&](const Span& span) {
    if (!is_complete(tile, tile.rows[r], span)) complete_scores(tile, r, span, row);
    largest = largest_score(row, span, largest);
  });
  return largest;
}

/// Replaces a row's scores by weights and returns their sum.
template <WeightForm Form, typename T>
inline T exponentiate_row(const ScoreTile<T>& tile, int64_t r, T* row, T largest) {
  const auto range = visible(tile, tile.rows[r]);
  Vec<T> sum = {};
  for_each_seen(tile, r, range, [&](const Span& span) {
    const auto all = [](int64_t, Vec<T> weights) { return weights; };
    sum = tile.format.dropout.threshold == 0
              ? exponentiate<Form>(row, span, largest, sum, all)
              : exponentiate_with_dropout<Form>(tile, r, row, span, largest, sum);
  });
  clear_hidden<Form == kNumbers ? 1 : 2>(tile, r, range, row);
  return reduce_sum<T>(sum);
}

template <WeightForm Form, typename T>
void softmax_tile(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row) {
  // So many rows take each step together: a row's weights need not wait for its largest score.
  constexpr int64_t kStripRows = 16;
  for (int64_t first = 0; first < tile.count; first += kStripRows) {
    const int64_t last = first + kStripRows < tile.count ? first + kStripRows : tile.count;
    T before[kStripRows];
    for (int64_t r = first; r < last; ++r) {
      before[r - first] = largest[r];
      largest[r] = complete_row(tile, r, tile.scores + r * tile.stride, largest[r]);
#ifdef __AVX512BF16__
      if constexpr (Form == kTrainingPairs) {
        if (largest[r] > before[r - first]) largest[r] = multiple_from(largest[r]);
      }
#endif
    }
    for (int64_t r = first; r < last; ++r) {
      // Where nothing was seen so far, exp(-inf - 0) makes every weight 0 rather than NaN.
      const T shift = largest[r] == -kInfinity<T> ? 0 : largest[r];
      if (before[r - first] != shift) {
        const T factor = exp_unclamped(broadcast(before[r - first] - shift))[0];
        sum[r] *= factor;
        T* of_row = output + r * output_row;
        for (int64_t column = 0; column < output_row; ++column) of_row[column] *= factor;
      }
      sum[r] += exponentiate_row<Form>(tile, r, tile.scores + r * tile.stride, shift);
    }
  }
}

template <typename T>
void softmax(const ScoreTile<T>& tile, T* largest, T* sum, T* output, int64_t output_row) {
#ifdef __AVX512BF16__
  if constexpr (kSame<T, float>) {
    if (tile.format.weights == kPairs) {
      return softmax_tile<kPairs>(tile, largest, sum, output, output_row);
    }
    if (tile.format.weights == kTrainingPairs) {
      return softmax_tile<kTrainingPairs>(tile, largest, sum, output, output_row);
    }
  }
#endif
  softmax_tile<kNumbers>(tile, largest, sum, output, output_row);
}

template <WeightForm Form, bool Dropout, typename T>
inline void backward_span(T* row, T* gradients, const Span& span, T largest, T inverse_sum, T delta,
                          const RowDraws& draws) {
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    const auto score = load(row + column);
    // What is hidden has no weight and no gradient, not even NaN.
    const auto hidden = score == -kInfinity<T>;
    const auto weight = hidden ? Vec<T>{} : weights_of<Form, T>(score - largest) * inverse_sum;
    auto gradient = load(gradients + column);
    if (Dropout) gradient = draws.kept(column, gradient);
    store(gradients + column, hidden ? Vec<T>{} : weight * (gradient - delta));
    store(row + column, Dropout ? draws.kept(column, weight) : weight);
  }
}

template <WeightForm Form, typename T>
void backward_row(const ScoreTile<T>& tile, int64_t r, T largest, T inverse_sum, T delta,
                  T* gradients) {
  T cap_slopes[kMaxTileWidth];
  const bool through_softcap = tile.format.softcap > 0 && tile.format.through_softcap;
  T* row = tile.scores + r * tile.stride;
  const auto range = visible(tile, tile.rows[r]);
  for_each_seen(tile, r, range, [&](const Span& span) {
    complete_scores(tile, r, span, row, through_softcap ? cap_slopes : nullptr);
    const RowDraws draws(tile, tile.rows[r], span);
    if (draws.active()) {
      backward_span<Form, true>(row, gradients, span, largest, inverse_sum, delta, draws);
    } else {
      backward_span<Form, false>(row, gradients, span, largest, inverse_sum, delta, draws);
    }
    for (int64_t column = span.first; through_softcap && column < span.last; ++column) {
      // The slope at a hidden score may be NaN.
      if (gradients[column] != 0) gradients[column] *= cap_slopes[column];
    }
  });
  clear_hidden(tile, r, range, row);
  clear_hidden(tile, r, range, gradients);
}

#ifdef __AVX512BF16__
/// Pairs whose first elements are of one row and whose second elements are of the other.
inline Vec<BFloat16Pair> pairs_of_rows(Vec<float> first, Vec<float> second) {
  const auto bits = [](Vec<float> v) { return bit_cast<Vec<BFloat16Pair>>(v); };
  return bits(rounded(first)) >> 16 | bits(rounded(second));
}

/// See softmax_backward.
inline void pair_rows(const ScoreTile<float>& tile, int64_t r, float* gradients) {
  float* first = tile.scores + r * tile.stride;
  float* second = first + tile.stride;
  float* of_first = gradients + r * tile.stride;
  float* of_second = of_first + tile.stride;
  const int64_t end = (tile.width + kColumnMultiple - 1) / kColumnMultiple * kColumnMultiple;
  for (int64_t column = 0; column < end; column += kLanes<float>) {
    const auto weights = pairs_of_rows(load(first + column), load(second + column));
    const auto a = load(of_first + column);
    const auto b = load(of_second + column);
    __builtin_memcpy(first + column, &weights, sizeof(weights));
    const auto both = pairs_of_rows(a, b);
    __builtin_memcpy(second + column, &both, sizeof(both));
    store_pairs(of_first, column, a);
    store_pairs(of_second, column, b);
  }
}

void softmax_backward_in_pairs(const ScoreTile<float>& tile, const float* largest,
                               const float* inverse_sum, const float* delta, float* gradients) {
  const auto row = [&](int64_t r) {
    backward_row<kTrainingPairs>(tile, r, largest[r], inverse_sum[r], delta[r],
                                 gradients + r * tile.stride);
  };
  for (int64_t r = 0; r < tile.count; r += 2) {
    row(r);
    if (r + 1 < tile.count) {
      row(r + 1);
    } else {
      __builtin_memset(tile.scores + (r + 1) * tile.stride, 0, tile.stride * sizeof(float));
      __builtin_memset(gradients + (r + 1) * tile.stride, 0, tile.stride * sizeof(float));
    }
    pair_rows(tile, r, gradients);
  }
}
#endif

template <typename T>
void softmax_backward(const ScoreTile<T>& tile, const T* largest, const T* inverse_sum,
                      const T* delta, T* gradients) {
#ifdef __AVX512BF16__
  if constexpr (kSame<T, float>) {
    if (tile.format.weights == kTrainingPairs) {
      return softmax_backward_in_pairs(tile, largest, inverse_sum, delta, gradients);
    }
  }
#endif
  for (int64_t r = 0; r < tile.count; ++r) {
    backward_row<kNumbers>(tile, r, largest[r], inverse_sum[r], delta[r],
                           gradients + r * tile.stride);
  }
}

inline uint64_t nonzero_bytes(const uint8_t* bytes, int64_t stride, int64_t count) {
  uint64_t bits = 0;
#if defined(__AVX512BW__)
  if (stride == 1) {
    const __mmask64 lanes = bits_of(0, count);
    const auto vector = _mm512_maskz_loadu_epi8(lanes, bytes);
    return _mm512_test_epi8_mask(vector, vector);
  }
#elif defined(__AVX2__)
  if (stride == 1 && count == 64) {
    for (int64_t half = 0; half < 2; ++half) {
      const auto vector = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + half * 32));
      const auto zeros = _mm256_cmpeq_epi8(vector, _mm256_setzero_si256());
      bits |= uint64_t{~static_cast<uint32_t>(_mm256_movemask_epi8(zeros))} << (half * 32);
    }
    return bits;
  }
#endif
  for (int64_t i = 0; i < count; ++i) bits |= uint64_t{bytes[i * stride] != 0} << i;
  return bits;
}

uint64_t seen_keys(const bool* mask, int64_t stride, int64_t count) {
  return nonzero_bytes(reinterpret_cast<const uint8_t*>(mask), stride, count);
}

/// A bit for each 16 bits: whether some of them are 1.
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

void seen_cells(const bool* mask, int64_t stride, int64_t count, CellBits* cells) {
  constexpr int64_t kKeys = 64;  // at a time
  constexpr int64_t kCells = kKeys / kCellKeys;
  for (int64_t key = 0; key < count; ++cells) {
    *cells = {};
    for (int64_t cell = 0; cell < kCellsOfBits && key < count; cell += kCells, key += kKeys) {
      const int64_t keys = count - key < kKeys ? count - key : kKeys;
      const auto existing = bits_of(0, keys);
      const auto seen = seen_keys(mask + key * stride, stride, keys);
      const auto hidden = any_of_cells(existing & ~seen);
      cells->any |= any_of_cells(seen) << cell;
      cells->all |= (any_of_cells(existing) & ~hidden) << cell;
    }
  }
}

template <typename T>
constexpr ScoreKernelsOf<T> kKernels = {softmax<T>, softmax_backward<T>};

}  // namespace

const ScoreKernels score_kernels = {kKernels<float>, kKernels<double>, seen_keys, seen_cells,
                                    draw_words};

}  // namespace heed::detail::HEED_ISA
