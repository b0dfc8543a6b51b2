#include "characters.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <stdexcept>

namespace heed::examples {

namespace {

constexpr char kFirstPrinted = ' ';
constexpr char kLastPrinted = '~';

}  // namespace

at::Tensor to_tokens(const std::vector<std::string>& texts) {
  size_t longest = 0;
  for (const auto& text : texts) longest = std::max(longest, text.size());
  const auto tokens = at::full(
      {static_cast<int64_t>(texts.size()), static_cast<int64_t>(longest) + 2}, kPadding, at::kLong);
  const auto rows = tokens.accessor<int64_t, 2>();
  for (size_t b = 0; b < texts.size(); ++b) {
    auto row = rows[static_cast<int64_t>(b)];
    int64_t place = 0;
    row[place++] = kBegin;
    for (const char c : texts[b]) {
      if (c < kFirstPrinted || c > kLastPrinted) {
        throw std::runtime_error("character " + std::to_string(place) + " of '" + texts[b] +
                                 "' is not printable ASCII");
      }
      row[place++] = c;
    }
    row[place] = kEnd;
  }
  return tokens;
}

std::vector<std::string> to_texts(const at::Tensor& tokens) {
  const auto on_cpu = tokens.cpu();
  const auto rows = on_cpu.accessor<int64_t, 2>();
  std::vector<std::string> texts(static_cast<size_t>(rows.size(0)));
  for (int64_t b = 0; b < rows.size(0); ++b) {
    for (int64_t i = 0; i < rows.size(1) && rows[b][i] != kEnd; ++i) {
      if (rows[b][i] != kBegin) texts[static_cast<size_t>(b)] += static_cast<char>(rows[b][i]);
    }
  }
  return texts;
}

}  // namespace heed::examples
