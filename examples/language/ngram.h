// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace heed::examples {

/// A text model that counts how often each byte follows the few bytes before it: the baseline that
/// a neural model must beat. It interpolates longer contexts with shorter ones, by the number of
/// different bytes that followed them. Witten and Bell 1991, method C.
class NgramModel {
 public:
  /// `order`, at most 7, includes the predicted byte.
  NgramModel(std::string_view text, int order);

  /// The probability of `next` after the last order - 1 bytes of `before`.
  double probability(std::string_view before, char next) const;

  /// The mean of -log2 of the probability of every byte of `text`.
  double bits_per_character(std::string_view text) const;

 private:
  struct Followers {
    int64_t total = 0;
    int64_t kinds = 0;
  };

  size_t order_;
  std::unordered_map<uint64_t, int64_t> counts_;       // of a context and the byte after it
  std::unordered_map<uint64_t, Followers> followers_;  // of a context
};

}  // namespace heed::examples
