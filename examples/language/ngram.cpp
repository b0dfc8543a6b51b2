// SPDX-License-Identifier: BSD-3-Clause
#include "ngram.h"

#include <cmath>
#include <string>

namespace heed::examples {

namespace {

constexpr double kByteValues = 256;

/// Up to seven bytes and their number, as one.
uint64_t pack(std::string_view bytes) {
  uint64_t key = bytes.size();
  for (const char byte : bytes) key = (key << 8) | static_cast<unsigned char>(byte);
  return key;
}

}  // namespace

NgramModel::NgramModel(std::string_view text, int order) : order_(static_cast<size_t>(order)) {
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t length = 0; length < order_ && length <= i; ++length) {
      auto& followers = followers_[pack(text.substr(i - length, length))];
      auto& count = counts_[pack(text.substr(i - length, length + 1))];
      if (count == 0) ++followers.kinds;
      ++count;
      ++followers.total;
    }
  }
}

double NgramModel::probability(std::string_view before, char next) const {
  double probability = 1 / kByteValues;
  for (size_t length = 0; length < order_ && length <= before.size(); ++length) {
    const auto context = before.substr(before.size() - length);
    const auto found = followers_.find(pack(context));
    if (found == followers_.end()) break;  // and so is every longer context
    const auto count = counts_.find(pack(std::string(context) + next));
    const auto times = count == counts_.end() ? 0.0 : static_cast<double>(count->second);
    const auto kinds = static_cast<double>(found->second.kinds);
    probability =
        (times + kinds * probability) / (static_cast<double>(found->second.total) + kinds);
  }
  return probability;
}

double NgramModel::bits_per_character(std::string_view text) const {
  double bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    bits -= std::log2(probability(text.substr(0, i), text[i]));
  }
  return bits / static_cast<double>(text.size());
}

}  // namespace heed::examples
