#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model.h"
#include "seeded_hash.h"

namespace heed::examples::text {

/// The ids of the words that a text repeats.
class WordCache {
 public:
  explicit WordCache(const Model& model) : model_(model) {}

  void append_word(std::string_view word, std::vector<int64_t>& ids);

 private:
  struct Word {
    std::string spelling;
    std::vector<int64_t> ids;
  };

  const Model& model_;
  std::deque<Word> words_;
  // The keys lie in words_.
  std::unordered_map<std::string_view, const Word*, SeededHash> found_;
};

}  // namespace heed::examples::text
