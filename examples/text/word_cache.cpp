#include "word_cache.h"

namespace heed::examples::text {

namespace {

// Some 10 MB at most.
constexpr size_t kMostWords = 65536;
constexpr size_t kLongestWord = 64;

}  // namespace

void WordCache::append_word(std::string_view word, std::vector<int64_t>& ids) {
  const auto found = found_.find(word);
  if (found != found_.end()) {
    ids.insert(ids.end(), found->second->ids.begin(), found->second->ids.end());
    return;
  }
  const auto begin = static_cast<std::ptrdiff_t>(ids.size());
  model_.append_word(word, ids);
  if (word.size() > kLongestWord || words_.size() == kMostWords) return;
  words_.push_back({std::string(word), {ids.begin() + begin, ids.end()}});
  found_.emplace(words_.back().spelling, &words_.back());
}

}  // namespace heed::examples::text
