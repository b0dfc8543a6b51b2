#pragma once

#include "cpu/isa/simd.h"

/// Philox 4x32 with 7 rounds: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
/// Only for the sources of this folder.

namespace heed::detail::HEED_ISA {

/// Keys whose draws come from 16 neighboring counters, 4 words each.
constexpr int64_t kDrawGroup = 64;

/// A word in the low half of each lane; what the high halves hold has no meaning.
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

/// The random numbers of query `index` of `head` for the keys of groups [group, group + count):
/// uniform words [count * kDrawGroup], which depend only on `key`, `head`, `index` and their
/// position.
inline void draw_words(uint64_t key, uint32_t head, uint32_t index, int64_t group, int64_t count,
                       uint32_t* words) {
  constexpr int64_t kCounters = kDrawGroup / 4;
  Vec<uint64_t> twice;
  for (uint64_t lane = 0; lane < kLanes<uint64_t>; ++lane) twice[lane] = 2 * lane;
  for (int64_t g = 0; g < count; ++g, words += kDrawGroup) {
    for (int64_t first = 0; first < kCounters; first += kLanes<uint32_t>) {
      const auto counter = twice + static_cast<uint64_t>((group + g) * kCounters + first);
      const auto even = philox(counter, index, head, key);
      const auto odd = philox(counter + 1, index, head, key);
      for (int64_t word = 0; word < 4; ++word) {
        const auto pair = (even.words[word] & 0xffffffffU) | (odd.words[word] << 32);
        store(words + word * kCounters + first, bit_cast<Vec<uint32_t>>(pair));
      }
    }
  }
}

}  // namespace heed::detail::HEED_ISA
