#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace heed::examples {

/// A model of text that counts: how often a byte followed the few before it. What a neural model
/// has to beat. Longer contexts are interpolated with shorter ones by how many kinds of bytes
/// followed them. Witten and Bell 1991, method C.
class NgramModel {
 public:
  /// `order`, at most 7, counts the predicted byte too.
  NgramModel(std::string_view text, int order);

  /// Of `next` after `before`, whose last order - 1 bytes count.
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
