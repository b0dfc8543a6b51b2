// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/ceil_div.h"
#include "cpu/isa/functions.h"
#include "cpu/isa/scores.h"

/// The scores of a tile between its product and its softmax: which keys a row sees, and how scores
/// are changed and hidden. Only for the sources of this folder.
///
///   for each run of the row's cells with keys that it sees, within its span:    # for_each_seen
///     score = softcap * tanh(score / softcap) - slope * |position - key| + biases
///     score = -inf in cells partly seen, if the key is hidden                   # hide_in_cells
///   score = -inf beside the span, in its first and last vector                  # hide_beside
///
///   cells of a row        |  0  |  1  |  2  |  3  |  4  |  5  |     16 keys each
///   visible                      [first ........... last)           causal, windows, lengths
///   CellBits::any            1     1     0     1     1     0        mask, documents, and windows
///                                                                   that global tokens lift
///   CellBits::all            1     0     0     1     0     0
///   read_cells               0     1     1     1     1     0        seen by a row of the strip
///
/// Products read only the cells of the last line. Where the row itself sees nothing there,
/// clear_hidden writes weights of 0. All other cells are skipped, and hold anything. Tiles with a
/// mask alone go by strips: they visit the vectors of read_cells in every row (StripVectors).
/// See docs/kernels.md, "Block", "What is hidden is not computed".

namespace heed::detail::HEED_ISA {

template <typename T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());

/// Columns [first, last) of a tile, and the columns of the whole vectors that hold them.
struct Span {
  int64_t first, last;
  int64_t aligned_first, aligned_last;
  bool empty() const { return first >= last; }
};

/// `last` is negative where a row sees only keys before the tile: its span is empty.
template <typename T>
inline Span span_of(int64_t first, int64_t last) {
  const int64_t count = last > 0 ? last : 0;
  return {first, last, first / kLanes<T> * kLanes<T>, round_up(count, kLanes<T>)};
}

/// The columns that causal, window and lengths let the row see.
template <typename T>
inline Span visible(const ScoreTile<T>& tile, const QueryRow& row) {
  const int64_t first = row.first_key > tile.first_key ? row.first_key - tile.first_key : 0;
  const int64_t last = row.last_key - tile.first_key;
  return span_of<T>(first, last < tile.width ? last : tile.width);
}

/// A word in which bits [first, first + count) are 1.
inline uint64_t bits_of(int64_t first, int64_t count) {
  return (count == kCellsOfBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
}

/// Word `word` of a sequence of bits in which bits [first, last) are 1.
inline uint64_t bits_between(int64_t first, int64_t last, int64_t word) {
  first -= word * kCellsOfBits;
  last -= word * kCellsOfBits;
  first = first > 0 ? first : 0;
  last = last < kCellsOfBits ? last : kCellsOfBits;
  return first < last ? bits_of(first, last - first) : 0;
}

/// Calls visit(first, count) for each run of ones in `bits`.
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

/// Calls visit(first, last) with the columns of each run of cells in `bits`, which are word `word`
/// of a row's cells.
template <typename Visit>
inline void for_each_run_of_columns(uint64_t bits, int64_t word, const Visit& visit) {
  for_each_run_of_bits(bits, [&](int64_t cell, int64_t count) {
    const int64_t column = (word * kCellsOfBits + cell) * kCellKeys;
    visit(column, column + count * kCellKeys);
  });
}

/// Calls visit(first, last) with the columns of each run of cells that wanted(CellBits) picks, as
/// far as they are in `within`.
template <typename T, typename Wanted, typename Visit>
inline void for_each_run_of_cells(const ScoreTile<T>& tile, int64_t r, const Span& within,
                                  const Wanted& wanted, const Visit& visit) {
  const CellBits* cells = tile.cells + r * tile.words;
  for (int64_t word = 0; word < tile.words; ++word) {
    for_each_run_of_columns(wanted(cells[word]), word, [&](int64_t begin, int64_t end) {
      const int64_t first = begin > within.first ? begin : within.first;
      const int64_t last = end < within.last ? end : within.last;
      if (first < last) visit(first, last);
    });
  }
}

/// Calls visit(span) for each run of cells of which the row may see a key, as far as they are in
/// `within`.
template <typename T, typename Visit>
inline void for_each_seen(const ScoreTile<T>& tile, int64_t r, const Span& within,
                          const Visit& visit) {
  if (within.empty()) return;
  if (tile.cells == nullptr) return visit(within);
  for_each_run_of_cells(
      tile, r, within, [](CellBits bits) { return bits.any; },
      [&](int64_t first, int64_t last) { visit(span_of<T>(first, last)); });
}

/// Word `word` of the bits of the cells that products read in row r.
template <typename T>
inline uint64_t read_cells(const ScoreTile<T>& tile, int64_t r, int64_t word) {
  if (tile.read != nullptr) return tile.read[r / kStripRows * tile.words + word];
  return bits_between(0, ceil_div(tile.width, kCellKeys), word);
}

/// Whether products read any cell of row r. If not, no row of its strip sees a key.
template <typename T>
inline bool reads_any(const ScoreTile<T>& tile, int64_t r) {
  uint64_t read = 0;
  for (int64_t word = 0; word < tile.words; ++word) read |= read_cells(tile, r, word);
  return read != 0;
}

/// Calls visit(first, last) with the columns of each run of cells that products read in row r.
template <typename T, typename Visit>
inline void for_each_read(const ScoreTile<T>& tile, int64_t r, const Visit& visit) {
  for (int64_t word = 0; word < tile.words; ++word) {
    for_each_run_of_columns(read_cells(tile, r, word), word, visit);
  }
}

/// Writes 0 to all vectors in which the row sees no key, in cells that products read. `Packing`
/// columns take the memory of one float: 2 if the row holds pairs.
template <int64_t Packing = 1, typename T>
inline void clear_hidden(const ScoreTile<T>& tile, int64_t r, const Span& within, T* row) {
  const int64_t end = round_up(tile.width, kCellKeys);
  const bool in_all_vectors = within.first == 0 && within.aligned_last == end;
  if (tile.cells == nullptr && in_all_vectors) return;
  const auto clear = [&](int64_t first, int64_t last) {
    for (int64_t column = first; column < last; column += kLanes<T>) {
      __builtin_memset(row + column / Packing, 0, kVectorBytes / Packing);
    }
  };
  const int64_t first_cell = within.first / kCellKeys;
  const int64_t last_cell = within.empty() ? 0 : ceil_div(within.last, kCellKeys);
  for (int64_t word = 0; word < tile.words; ++word) {
    auto seen = bits_between(first_cell, last_cell, word);
    if (tile.cells != nullptr) seen &= tile.cells[r * tile.words + word].any;
    for_each_run_of_columns(read_cells(tile, r, word) & ~seen, word, clear);
  }
  if (within.empty()) return;
  clear(first_cell * kCellKeys, within.aligned_first);
  clear(within.aligned_last, last_cell * kCellKeys);
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

/// The result of a comparison of vectors: the bits of a lane are all 1 if it is true there.
template <typename T>
using Lanes = decltype(Vec<T>{} < Vec<T>{});

/// Lane i: whether bit i is 1.
template <typename T>
inline Lanes<T> are_ones(uint64_t bits) {
  Lanes<T> bit_of_lane;
  for (int32_t lane = 0; lane < kLanes<T>; ++lane) bit_of_lane[lane] = 1 << lane;
  return (bit_of_lane & static_cast<int32_t>(bits)) != 0;
}

inline Lanes<double> are_equal(const int64_t* from, int64_t value, double /*lanes of*/) {
  return load(from) == value;
}

inline Lanes<float> are_equal(const int64_t* from, int64_t value, float /*lanes of*/) {
  const auto low = bit_cast<Lanes<float>>(load(from) == value);
  const auto high = bit_cast<Lanes<float>>(load(from + kLanes<int64_t>) == value);
  Lanes<float> even;
  for (int32_t lane = 0; lane < kLanes<float>; ++lane) even[lane] = 2 * lane;
  return shuffle<int32_t>(low, high, even);
}

/// Sets scores[i] to -inf in the lanes of a vector where bit i of `seen` is 0.
template <typename T>
inline void hide_unseen(uint64_t seen, T* scores) {
  store(scores, are_ones<T>(seen) ? load(scores) : broadcast(-kInfinity<T>));
}

/// Bits of keys from `key` on, to the end of their word: whether mask and window show them.
inline uint64_t shown_bits(const QueryRow& query, int64_t key) {
  const int64_t word = key / kKeysOfBits;
  uint64_t bits = ~uint64_t{0};
  if (query.mask != nullptr) bits = query.mask[(key - query.mask_key) / kKeysOfBits];
  if (query.global != nullptr) {
    bits &= query.global[word] | bits_between(query.window_first, query.window_last, word);
  }
  return bits >> (key % kKeysOfBits);
}

/// Sets scores to -inf where mask or window hide the key, in the vectors of columns [first, last).
template <typename T>
inline void hide_masked(const ScoreTile<T>& tile, const QueryRow& query, int64_t first,
                        int64_t last, T* row) {
  if (query.mask == nullptr && query.global == nullptr) return;
  const auto span = span_of<T>(first, last);
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    hide_unseen(shown_bits(query, tile.first_key + column), row + column);
  }
}

/// Sets scores of columns [first, last) to -inf where the key is of another document.
template <typename T>
inline void hide_other_documents(const ScoreTile<T>& tile, const QueryRow& query, int64_t first,
                                 int64_t last, T* row) {
  if (query.key_documents == nullptr) return;
  const int64_t* documents = query.key_documents + tile.first_key;
  int64_t column = first;
  for (; column + kLanes<T> <= last; column += kLanes<T>) {
    const auto same = are_equal(documents + column, query.document, T{});
    store(row + column, same ? load(row + column) : broadcast(-kInfinity<T>));
  }
  for (; column < last; ++column) {
    if (documents[column] != query.document) row[column] = -kInfinity<T>;
  }
}

/// Sets scores to -inf where mask or documents hide the key, in cells that are partly seen.
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

/// score = cap * tanh(score / cap). If `slopes` [tile width] is not null, it gets the derivative
/// of the cap at each score.
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
  // Distances are counted from the column nearest to the query, where they are small and exact.
  const int64_t next = position < span.first  ? span.first
                       : position < span.last ? position
                                              : span.last;
  const T beyond = static_cast<T>(position - next);
  // 32-bit integers, so that the compiler vectorizes the loop.
  const auto near = static_cast<int32_t>(next);
  const auto last = static_cast<int32_t>(span.last);
  for (auto column = static_cast<int32_t>(span.first); column < last; ++column) {
    const T distance = beyond + static_cast<T>(near - column);
    row[column] -= slope * (distance < 0 ? -distance : distance);
  }
}

/// The columns of `span` at distances from a query of -R at most, between, and R at least, whose
/// relative biases are the first element, an element each, and the last one.
struct RelativeRuns {
  int64_t first, near, far, last;  ///< [first, near), [near, far) and [far, last)
  int64_t element;                 ///< column c of [near, far) has element c + `element`
};

template <typename T>
inline RelativeRuns relative_runs(const ScoreTile<T>& tile, const QueryRow& query,
                                  const Span& span) {
  const int64_t reach = tile.format.relative_reach;
  const int64_t position = query.relative_position - tile.first_key;
  const auto within = [&](int64_t column) {
    return column < span.first ? span.first : column > span.last ? span.last : column;
  };
  return {span.first, within(position - reach), within(position + reach + 1), span.last,
          reach - position};
}

/// Calls visit(column, element) for each column of `span`, where keys have relative positions of
/// their own.
template <typename T, typename Visit>
inline void for_each_element(const ScoreTile<T>& tile, const QueryRow& query, const Span& span,
                             const Visit& visit) {
  const int64_t* keys = query.relative_keys + tile.first_key;
  const int64_t reach = tile.format.relative_reach;
  for (int64_t column = span.first; column < span.last; ++column) {
    const int64_t apart = keys[column] - query.relative_position;
    visit(column, (apart < -reach ? -reach : apart > reach ? reach : apart) + reach);
  }
}

template <typename T>
inline void add_relative_bias(const ScoreTile<T>& tile, const QueryRow& query, const Span& span,
                              T* row) {
  if (query.relative_bias == nullptr) return;
  const T* bias = static_cast<const T*>(query.relative_bias);
  if (query.relative_keys != nullptr) {
    for_each_element(tile, query, span,
                     [&](int64_t column, int64_t element) { row[column] += bias[element]; });
    return;
  }
  const auto runs = relative_runs(tile, query, span);
  for (int64_t column = runs.first; column < runs.near; ++column) row[column] += bias[0];
  for (int64_t column = runs.near; column < runs.far; ++column) {
    row[column] += bias[column + runs.element];
  }
  const T last = bias[2 * tile.format.relative_reach];
  for (int64_t column = runs.far; column < runs.last; ++column) row[column] += last;
}

/// The sum of numbers [first, last), a vector at a time.
template <typename T>
inline T sum_of(const T* numbers, int64_t first, int64_t last) {
  Vec<T> lanes = {};
  for (; first + kLanes<T> <= last; first += kLanes<T>) lanes += load(numbers + first);
  T total = reduce_sum<T>(lanes);
  for (; first < last; ++first) total += numbers[first];
  return total;
}

/// Adds the gradients of a row's scores to those of its relative bias.
template <typename T>
inline void add_to_relative_sums(const ScoreTile<T>& tile, const QueryRow& query, const Span& span,
                                 const T* gradients) {
  if (query.relative_sums == nullptr) return;
  T* sums = static_cast<T*>(query.relative_sums);
  if (query.relative_keys != nullptr) {
    for_each_element(tile, query, span,
                     [&](int64_t column, int64_t element) { sums[element] += gradients[column]; });
    return;
  }
  const auto runs = relative_runs(tile, query, span);
  sums[0] += sum_of(gradients, runs.first, runs.near);
  for (int64_t column = runs.near; column < runs.far; ++column) {
    sums[column + runs.element] += gradients[column];
  }
  sums[2 * tile.format.relative_reach] += sum_of(gradients, runs.far, runs.last);
}

/// Adds the gradients of a row's scores, times minus the distance, to that of its slope. Gradients
/// beside the span are 0 in its first and last vector.
template <typename T>
inline void add_to_slope_sum(const ScoreTile<T>& tile, const QueryRow& query, const Span& span,
                             const T* gradients) {
  if (query.slope_sum == nullptr) return;
  const int64_t position = query.position - tile.first_key;
  Vec<T> lanes, total = {};
  for (int64_t lane = 0; lane < kLanes<T>; ++lane) lanes[lane] = static_cast<T>(lane);
  for (int64_t column = span.aligned_first; column < span.aligned_last; column += kLanes<T>) {
    const auto apart = broadcast(static_cast<T>(position - column)) - lanes;
    total -= (apart < T{0} ? -apart : apart) * load(gradients + column);
  }
  *static_cast<T*>(query.slope_sum) += reduce_sum<T>(total);
}

/// Sets the scores beside `within` to -inf, in its first and last vector. Stores whole vectors,
/// because a vector's load would wait for stores of single elements into it.
template <typename T>
inline void hide_beside(const Span& within, T* row) {
  if (within.aligned_first < within.first) {
    hide_unseen(~uint64_t{0} << (within.first - within.aligned_first), row + within.aligned_first);
  }
  if (within.last < within.aligned_last) {
    const int64_t column = within.aligned_last - kLanes<T>;
    hide_unseen(bits_of(0, within.last - column), row + column);
  }
}

/// Applies softcap, ALiBi and biases in cells of which the row sees a key. Not inlined, because
/// most calls have none of them.
template <typename T>
__attribute__((noinline)) void change_scores(const ScoreTile<T>& tile, int64_t r,
                                             const Span& within, T* row, T* cap_slopes = nullptr) {
  const auto& query = tile.rows[r];
  for_each_seen(tile, r, within, [&](const Span& span) {
    cap_scores(tile, span, row, cap_slopes);
    add_alibi(tile, query, span, row);
    add_bias(tile, query, span, row);
    add_relative_bias(tile, query, span, row);
  });
}

/// Sets hidden scores to -inf, in the cells and vectors of `within` of which the row sees a key.
/// This includes scores beside `within` in its first and last vector.
template <typename T>
inline void hide_scores(const ScoreTile<T>& tile, int64_t r, const Span& within, T* row) {
  if (within.empty()) return;
  hide_in_cells(tile, r, within, row);
  hide_beside(within, row);
}

/// The vectors of a strip's rows that products read, the same for all of its rows. If a mask hides
/// keys, visiting all these vectors takes less time than finding the cells that each row sees.
/// Hidden keys get weight 0.
template <typename T>
struct StripVectors {
  int64_t count = 0;
  int32_t columns[kMaxTileWidth / kLanes<T>];

  /// The strip's first row is `row`.
  void find(const ScoreTile<T>& tile, int64_t row) {
    count = 0;
    for_each_read(tile, row, [&](int64_t first, int64_t last) {
      for (int64_t column = first; column < last; column += kLanes<T>) {
        columns[count++] = static_cast<int32_t>(column);
      }
    });
  }
};

/// Whether the rows of a tile are visited by StripVectors: with a mask, but without documents and
/// dropout. Comparing documents and drawing random numbers takes time, so with these a row visits
/// only cells that it sees.
template <typename T>
inline bool goes_by_strips(const ScoreTile<T>& tile) {
  return tile.cells != nullptr && tile.read != nullptr && tile.words == 1 &&
         tile.rows[0].key_documents == nullptr && tile.format.dropout.threshold == 0;
}

/// The keys that a row sees in a tile that goes by strips.
struct SeenKeys {
  const QueryRow& query;
  Span within;
  uint64_t inside;  ///< bits of the cells of which causal, window and lengths hide nothing
  uint64_t whole;   ///< bits of the cells of which it sees all keys
};

template <typename T>
inline SeenKeys seen_keys_of(const ScoreTile<T>& tile, int64_t r) {
  const auto within = visible(tile, tile.rows[r]);
  const int64_t first = ceil_div(within.first, kCellKeys);
  const auto inside = bits_between(first, within.last / kCellKeys, /*word=*/0);
  return {tile.rows[r], within, inside, tile.cells[r].all & inside};
}

/// The vector of scores from `column` on, -inf for hidden keys.
template <typename T>
inline Vec<T> seen_scores(const ScoreTile<T>& tile, const SeenKeys& keys, int64_t column,
                          const T* row) {
  const auto scores = load(row + column);
  const auto has = [&](uint64_t cells) { return (cells >> (column / kCellKeys) & 1U) != 0; };
  if (has(keys.whole)) return scores;
  uint64_t bits = shown_bits(keys.query, tile.first_key + column);
  if (!has(keys.inside)) {
    bits &= bits_between(keys.within.first - column, keys.within.last - column, /*word=*/0);
  }
  return are_ones<T>(bits) ? scores : broadcast(-kInfinity<T>);
}

}  // namespace heed::detail::HEED_ISA
