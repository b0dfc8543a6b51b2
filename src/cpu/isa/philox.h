// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/simd.h"

/// Counter-based random numbers for dropout: Philox 4x32 with 7 rounds (Salmon et al. 2011,
/// "Parallel random numbers: as easy as 1, 2, 3"). Only for the sources of this folder.
///
/// Philox maps a counter of 4 words and a key of 2 words to 4 random words. It has no state: the
/// counter is made of the place of a score, so threads, tiles and vectors do not matter. The score
/// of query i and key j in head h of sequence b takes
///
///   counter (16 (j / 64) + j % 16, i, b H + h, 0), Philox key: `key` of the call
///   word    j % 64 / 16 of the 4 results
/// and element n of a tensor (drop_out) takes those of j = n % 2^34, i = n / 2^34, head 0.
///
///   j % 64               0 .. 15    16 .. 31   32 .. 47   48 .. 63
///   word                 0          1          2          3
///   counter % 16         0 .. 15    0 .. 15    0 .. 15    0 .. 15
///
/// So the 64 keys of a draw block use all words of 16 counters, and the words of neighboring
/// counters are stored as vectors. See docs/kernels.md, "Block", "Dropout".

namespace heed::detail::HEED_ISA {

/// Keys in a draw block: 16 neighboring counters, 4 words each.
constexpr int64_t kDrawBlock = 64;

/// The 4 words of one counter in each lane. A word is the low half of its 64-bit lane, which has
/// room for a product of two words; the high half has no meaning.
struct Counters {
  Vec<uint64_t> words[4];
};

inline Counters philox(Vec<uint64_t> counter, uint32_t index, uint32_t head, uint64_t key) {
  constexpr int kRounds = 7;
  auto low_key = static_cast<uint32_t>(key);
  auto high_key = static_cast<uint32_t>(key >> 32);
  Counters c = {{counter, broadcast(uint64_t{index}), broadcast(uint64_t{head}), {}}};
#pragma GCC unroll 7
  for (int round = 0; round < kRounds; ++round) {
    const auto first = multiply_low(c.words[0], 0xD2511F53U);
    const auto second = multiply_low(c.words[2], 0xCD9E8D57U);
    c = {{(second >> 32) ^ c.words[1] ^ uint64_t{low_key}, second,
          (first >> 32) ^ c.words[3] ^ uint64_t{high_key}, first}};
    low_key += 0x9E3779B9U;
    high_key += 0xBB67AE85U;
  }
  return c;
}

/// Fills words [count * kDrawBlock] with uniform random numbers: those of query `index` in `head`
/// for the keys of `count` draw blocks from `block` on. A word depends only on `key`, `head`,
/// `index` and the position of its key.
inline void draw_words(uint64_t key, uint32_t head, uint32_t index, int64_t block, int64_t count,
                       uint32_t* words) {
  constexpr int64_t kCounters = kDrawBlock / 4;
  Vec<uint64_t> twice;
  for (uint64_t lane = 0; lane < kLanes<uint64_t>; ++lane) twice[lane] = 2 * lane;
  for (int64_t g = 0; g < count; ++g, words += kDrawBlock) {
    for (int64_t first = 0; first < kCounters; first += kLanes<uint32_t>) {
      const auto counter = twice + static_cast<uint64_t>((block + g) * kCounters + first);
      const auto even = philox(counter, index, head, key);
      const auto odd = philox(counter + 1, index, head, key);
      for (int64_t word = 0; word < 4; ++word) {
        const auto pair = (even.words[word] & 0xffffffffU) | (odd.words[word] << 32);
        store(words + word * kCounters + first, bit_cast<Vec<uint32_t>>(pair));
      }
    }
  }
}

/// x in lanes whose words are at least `threshold`, 0 in those that are dropped.
/// @{
inline Vec<float> kept(const uint32_t* words, uint32_t threshold, Vec<float> x) {
  return load(words) >= threshold ? x : Vec<float>{};
}
inline Vec<double> kept(const uint32_t* words, uint32_t threshold, Vec<double> x) {
  typedef uint32_t Words __attribute__((vector_size(kVectorBytes / 2)));
  Words of_lanes;
  __builtin_memcpy(&of_lanes, words, sizeof(of_lanes));
  return __builtin_convertvector(of_lanes, Vec<uint64_t>) >= uint64_t{threshold} ? x
                                                                                 : Vec<double>{};
}
/// @}

}  // namespace heed::detail::HEED_ISA
