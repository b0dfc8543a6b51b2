// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/decode.h"

#include "core/ceil_div.h"
#include "cpu/isa/functions.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/pairs.h"

// Attention of few query rows to a block of keys. Memory bandwidth bounds it: each key and value
// is loaded, and converted to float32, once for all R rows of a call, while the next block is
// prefetched.
//
//   for each micro-tile of R rows by K = kMicroTile / R keys:                # score
//     scores = Q K^T
//   scores  = softcap(scores * key scales) + bias, -inf where hidden         # multiply .. hide
//   maximum = max(maximum, scores);  factor = exp(old maximum - maximum)     # exponentiate
//   weights = exp(scores - maximum);  sum = sum * factor + weights
//   for each C pairs of vectors of value columns:                            # add_values
//     output = output * factor + (weights * value scales) V, in registers    # add_columns
//
// A micro-tile of 4 rows and 4 keys in 16 lanes: lane r * K + j holds row r and key j. Maxima and
// sums stay in such lanes until `finish`.
//
//   row     0 0 0 0   1 1 1 1   2 2 2 2   3 3 3 3
//   key     0 1 2 3   0 1 2 3   0 1 2 3   0 1 2 3
//
// The K keys of micro-tile t are t, micro_tiles + t, 2 micro_tiles + t .. of the block. So a block
// is read as K streams of neighboring keys, which the hardware prefetches. See docs/kernels.md,
// "Decode".

namespace heed::detail::HEED_ISA {

namespace {

constexpr int64_t kMaxRows = kMicroTile < 16 ? 4 : 8;
constexpr float kMinusInfinity = -__builtin_inff();

constexpr int64_t padded_row(int64_t columns) { return round_up(columns, kDecodeRowMultiple); }

template <typename T>
inline void store_natural(float* to, Pair pair, const T* /*loaded from*/) {
  store(to, pair.first);
  store(to + kWidth, pair.second);
}

inline void store_natural(float* to, Pair pair, const BFloat16* /*loaded from*/) {
  for (int64_t i = 0; i < kWidth; ++i) {
    to[2 * i] = pair.first[i];
    to[2 * i + 1] = pair.second[i];
  }
}

/// Memory to prefetch. Each step prefetches as many bytes as it loads: memory is always busy.
struct Ahead {
  const char* next;

  /// `step` is any number that counts steps. Of steps that share a cache line, one prefetches it.
  template <int64_t Bytes>
  void advance(int64_t step) {
    if (Bytes >= kLine || step * Bytes % kLine == 0) prefetch<Bytes, 2>(next);
    next += Bytes;
  }
};

/// Scores of R rows and N <= kKeys keys; lanes r * kKeys + j with j >= N are 0.
template <int64_t R, int64_t N, typename T>
inline MicroTile scores_of(const DecodeBlock& block, const T* key, int64_t key_stride,
                           Ahead& ahead) {
  return dots<R, N>(block.query, padded_row(block.head_dim), key, key_stride, block.head_dim,
                    [&](int64_t j, int64_t) { ahead.advance<kPair * sizeof(T)>(j); });
}

/// Computes scores [micro_tiles, kMicroTile]. Micro-tile t takes keys t, micro_tiles + t, 2 *
/// micro_tiles + t and so on: kKeys streams. Scores of keys past the block's count are -infinity.
template <int64_t R, typename T>
void score(const DecodeBlock& block, int64_t micro_tiles, float* scores) {
  constexpr int64_t kKeys = kMicroTile / R;
  const auto* key = static_cast<const T*>(block.key);
  const bool whole = block.count == micro_tiles * kKeys;
  Ahead ahead{static_cast<const char*>(block.next_key)};
  for (int64_t t = 0; t < micro_tiles; ++t, scores += kMicroTile) {
    if (whole) {
      store_micro_tile(scores, scores_of<R, kKeys>(block, key + t * block.key_stride,
                                                   micro_tiles * block.key_stride, ahead));
      continue;
    }
    for (int64_t lane = 0; lane < kMicroTile; lane += kWidth) {
      store(scores + lane, broadcast(kMinusInfinity));
    }
    for (int64_t k = 0; k < kKeys && k * micro_tiles + t < block.count; ++k) {
      const auto one = scores_of<R, 1>(block, key + (k * micro_tiles + t) * block.key_stride,
                                       /*key_stride=*/0, ahead);
      for (int64_t r = 0; r < R; ++r) scores[r * kKeys + k] = one[r * kKeys];
    }
  }
}

/// scores = softcap * tanh(scores / softcap). Keys past the block's count stay at -infinity.
inline void cap(int64_t micro_tiles, float softcap, float* scores) {
  for (int64_t i = 0; i < micro_tiles * kMicroTile; i += kWidth) {
    const auto x = load(scores + i);
    store(scores + i, x > kMinusInfinity ? softcap * tanh(x / softcap) : x);
  }
}

/// scores += added [R, kDecodeBlock].
template <int64_t R>
void add(const DecodeBlock& block, int64_t micro_tiles, float* scores) {
  constexpr int64_t kKeys = kMicroTile / R;
  for (int64_t r = 0; r < R; ++r) {
    const float* added = block.added + r * kDecodeBlock;
    for (int64_t k = 0; k < kKeys; ++k) {
      for (int64_t t = 0; t < micro_tiles && k * micro_tiles + t < block.count; ++t) {
        scores[t * kMicroTile + r * kKeys + k] += added[k * micro_tiles + t];
      }
    }
  }
}

/// Multiplies the scores or weights of each key by its scale.
template <int64_t R>
void multiply(const float* scales, int64_t count, int64_t micro_tiles, float* scores) {
  constexpr int64_t kKeys = kMicroTile / R;
  constexpr int64_t kKeysOfVector = kKeys < kWidth ? kKeys : kWidth;
  Vec<int32_t> key_of_lane;
  for (int64_t lane = 0; lane < kWidth; ++lane) key_of_lane[lane] = lane % kKeysOfVector;
  float ordered[kDecodeBlock + kWidth];  // in order of micro-tiles; 1 past the block's count
  for (int64_t k = 0; k < kKeys; ++k) {
    for (int64_t t = 0; t < micro_tiles; ++t) {
      const int64_t key = k * micro_tiles + t;
      ordered[t * kKeys + k] = key < count ? scales[key] : 1.0F;
    }
  }
  for (int64_t t = 0; t < micro_tiles; ++t, scores += kMicroTile) {
    for (int64_t lane = 0; lane < kMicroTile; lane += kWidth) {
      const auto factors = load(ordered + t * kKeys + lane % kKeys);
      store(scores + lane, load(scores + lane) * shuffle<float>(factors, factors, key_of_lane));
    }
  }
}

/// Sets the scores or weights of hidden keys to `hidden`.
template <int64_t R>
void hide(const DecodeBlock& block, int64_t micro_tiles, float hidden, float* scores) {
  constexpr int64_t kKeys = kMicroTile / R;
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t k = 0; k < kKeys && k * micro_tiles < block.count; ++k) {
      const uint64_t seen = block.seen[r] >> (k * micro_tiles);
      float* score = scores + r * kKeys + k;
      for (int64_t t = 0; t < micro_tiles; ++t, score += kMicroTile) {
        if ((seen >> t & 1U) == 0) *score = hidden;
      }
    }
  }
}

/// Sets all lanes of a row to the largest of them, for each of R rows.
template <int64_t R>
void share_maximum(float* lanes) {
  constexpr int64_t kKeys = kMicroTile / R;
  for (int64_t r = 0; r < R; ++r, lanes += kKeys) {
    for (int64_t k = 1; k < kKeys; ++k) lanes[0] = lanes[k] > lanes[0] ? lanes[k] : lanes[0];
    for (int64_t k = 1; k < kKeys; ++k) lanes[k] = lanes[0];
  }
}

/// scores = exp(scores - maximum). Updates the state's maximum and sum. Returns exp(old maximum -
/// maximum), by which the output so far is to be multiplied.
template <int64_t R>
MicroTile exponentiate(int64_t micro_tiles, float* scores, DecodeState* state) {
  typedef Vec<float> V;
  const auto old_maximum = load_micro_tile(state->maximum);
  auto maximum = old_maximum;
  for (int64_t t = 0; t < micro_tiles; ++t) {
    maximum = map_micro_tiles([](V x, V largest) { return x > largest ? x : largest; },
                              load_micro_tile(scores + t * kMicroTile), maximum);
  }
  store_micro_tile(state->maximum, maximum);
  share_maximum<R>(state->maximum);
  // For a row that has seen no key yet, subtract 0: exp(-infinity - 0) is 0.
  maximum = map_micro_tiles([](V x) { return x > kMinusInfinity ? x : V{}; },
                            load_micro_tile(state->maximum));
  // exp_unclamped, because no score is larger than the maximum.
  const auto exp_less = [](V x, V largest) { return exp_unclamped(x - largest); };
  const auto factor = map_micro_tiles(exp_less, old_maximum, maximum);
  auto sum = map_micro_tiles([](V x, V f) { return x * f; }, load_micro_tile(state->sum), factor);
  for (int64_t t = 0; t < micro_tiles; ++t) {
    const auto weights =
        map_micro_tiles(exp_less, load_micro_tile(scores + t * kMicroTile), maximum);
    store_micro_tile(scores + t * kMicroTile, weights);
    sum = map_micro_tiles([](V x, V y) { return x + y; }, sum, weights);
  }
  store_micro_tile(state->sum, sum);
  return factor;
}

/// output [R, C pairs] = factors * output + weights * values, with all sums in registers.
template <int64_t R, int64_t C, typename T>
inline void add_columns(const DecodeBlock& block, const float* weights, int64_t micro_tiles,
                        const T* value, int64_t columns, const float* factors, float* output,
                        Ahead& ahead) {
  constexpr int64_t kKeys = kMicroTile / R;
  const int64_t stride = padded_row(block.value_head_dim);
  Pair sum[R][C];
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int64_t c = 0; c < C; ++c) {
      sum[r][c] = load_pair(output + r * stride + c * kPair);
      sum[r][c].first *= factors[r * kKeys];
      sum[r][c].second *= factors[r * kKeys];
    }
  }
  int64_t t = 0;
  for (int64_t n = 0; n < block.count; ++n, value += block.value_stride) {
    Pair values[C];
#pragma GCC unroll 8
    for (int64_t c = 0; c < C; ++c) {
      values[c] = load_up_to(value + c * kPair, columns - c * kPair);
    }
    ahead.advance<C * kPair * sizeof(T)>(n);
    const float* weight = weights + t * kMicroTile;
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int64_t c = 0; c < C; ++c) {
        sum[r][c].first += weight[r * kKeys] * values[c].first;
        sum[r][c].second += weight[r * kKeys] * values[c].second;
      }
    }
    if (++t == micro_tiles) {  // the next stream
      t = 0;
      ++weights;
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int64_t c = 0; c < C; ++c) {
      store(output + r * stride + c * kPair, sum[r][c].first);
      store(output + r * stride + c * kPair + kWidth, sum[r][c].second);
    }
  }
}

/// output [R, Dv] = factors * output + weights * values, from column `first` on. Takes C pairs of
/// vectors at a time, then C / 2 and so on for the columns that are left.
template <int64_t R, int64_t C, typename T>
void add_values(const DecodeBlock& block, const float* weights, int64_t micro_tiles, int64_t first,
                const float* factors, float* output, Ahead& ahead) {
  const auto* value = static_cast<const T*>(block.value);
  for (; first + C * kPair <= block.value_head_dim; first += C * kPair) {
    add_columns<R, C>(block, weights, micro_tiles, value + first, C * kPair, factors,
                      output + first, ahead);
  }
  if constexpr (C > 1) {
    add_values<R, C / 2, T>(block, weights, micro_tiles, first, factors, output, ahead);
  } else if (first < block.value_head_dim) {
    add_columns<R, 1>(block, weights, micro_tiles, value + first, block.value_head_dim - first,
                      factors, output + first, ahead);
  }
}

template <int64_t R, typename T>
void attend_rows(const DecodeBlock& block, DecodeState* state) {
  constexpr int64_t kKeys = kMicroTile / R;
  const int64_t micro_tiles = ceil_div(block.count, kKeys);
  float scores[kDecodeBlock * R], factors[kMicroTile];
  score<R, T>(block, micro_tiles, scores);
  if constexpr (kSame<T, Int8>) multiply<R>(block.key_scales, block.count, micro_tiles, scores);
  if (block.softcap > 0.0F) cap(micro_tiles, block.softcap, scores);
  if (block.added != nullptr) add<R>(block, micro_tiles, scores);
  if (block.seen != nullptr) hide<R>(block, micro_tiles, kMinusInfinity, scores);
  store_micro_tile(factors, exponentiate<R>(micro_tiles, scores, state));
  if constexpr (kSame<T, Int8>) {
    multiply<R>(block.value_scales, block.count, micro_tiles, scores);
    if (block.seen != nullptr) hide<R>(block, micro_tiles, 0.0F, scores);  // scales may be NaN
  }
  Ahead ahead{static_cast<const char*>(block.next_value)};
  add_values<R, kMaxRows / R, T>(block, scores, micro_tiles, 0, factors, state->output, ahead);
}

template <typename T>
void pack(const void* from, int64_t head_dim, float factor, float* to) {
  const auto* query = static_cast<const T*>(from);
  for (int64_t d = 0; d < head_dim; d += kPair) {
    const auto pair = load_up_to(query + d, head_dim - d);
    store(to + d, pair.first * factor);
    store(to + d + kWidth, pair.second * factor);
  }
}

template <typename T>
void attend(const DecodeBlock& block, DecodeState* state) {
  switch (block.rows) {
    case 1:
      return attend_rows<1, T>(block, state);
    case 2:
      return attend_rows<2, T>(block, state);
    case 4:
      return attend_rows<4, T>(block, state);
    default:
      if constexpr (kMaxRows == 8) attend_rows<8, T>(block, state);
  }
}

template <typename T>
bool are_finite(const void* from, int64_t from_row, int64_t count, int64_t columns) {
  const auto* row = static_cast<const T*>(from);
  Vec<float> zeros = {};  // sums of 0 * x, which is NaN if x is not finite
  for (int64_t n = 0; n < count; ++n, row += from_row) {
    for (int64_t d = 0; d < columns; d += kPair) {
      const auto pair = load_up_to(row + d, columns - d);
      zeros += pair.first * 0.0F + pair.second * 0.0F;
    }
  }
  return reduce_sum<float>(zeros) == 0;
}

template <typename T>
void finish(int64_t rows, int64_t value_head_dim, DecodeState* state) {
  const int64_t keys = kMicroTile / rows;
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0.0F;
    for (int64_t k = 0; k < keys; ++k) sum += state->sum[r * keys + k];
    state->maximum[r] = state->maximum[r * keys];  // r <= r * keys: nothing unread is overwritten
    state->sum[r] = sum;
    float* output = state->output + r * padded_row(value_head_dim);
    for (int64_t d = 0; d < value_head_dim; d += kPair) {
      store_natural(output + d, load_pair(output + d), static_cast<const T*>(nullptr));
    }
  }
}

template <typename T, typename Compute>
constexpr DecodeKernelsOf kKernels = {};
template <typename T>
constexpr DecodeKernelsOf kKernels<T, float> = {pack<T>, attend<T>, are_finite<T>, finish<T>};

}  // namespace

#define HEED_KERNELS(name, Element, Compute, torch_name) kKernels<Element, Compute>,
const DecodeKernels decode_kernels = {{HEED_ELEMENT_TYPES(HEED_KERNELS)},
                                      {pack<float>, attend<Int8>, are_finite<Int8>, finish<Int8>},
                                      kMaxRows};
#undef HEED_KERNELS

}  // namespace heed::detail::HEED_ISA
