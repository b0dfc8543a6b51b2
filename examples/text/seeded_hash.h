// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

namespace heed::examples::text {

/// A hash that differs from process to process, so that nobody can write a file whose entries all
/// have the same.
struct SeededHash {
  size_t operator()(uint64_t key) const { return mixed(seed() ^ key); }

  size_t operator()(std::string_view text) const {
    auto hash = seed() ^ text.size();
    uint64_t word = 0;
    for (; text.size() > sizeof(word); text.remove_prefix(sizeof(word))) {
      std::memcpy(&word, text.data(), sizeof(word));
      hash = mixed(hash ^ word);
    }
    word = 0;
    if (!text.empty()) std::memcpy(&word, text.data(), text.size());
    return mixed(hash ^ word);
  }

 private:
  /// The last step of SplitMix64 (Steele et al. 2014).
  static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31U);
  }

  static uint64_t seed() {
    static const uint64_t drawn = std::random_device()() | uint64_t{std::random_device()()} << 32U;
    return drawn;
  }
};

}  // namespace heed::examples::text
