#include "word_piece.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "support/input_file.h"

namespace heed::examples {

namespace {

using CodePoint = utf8proc_int32_t;

constexpr std::string_view kContinues = "##";
constexpr size_t kLongestWord = 100;  // in characters; longer ones are unknown
constexpr std::array kSpecials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

/// Canonical decomposition (NFD), in which accents stand behind their letters.
std::vector<CodePoint> decompose(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto length = static_cast<utf8proc_ssize_t>(text.size());
  const auto size = utf8proc_decompose(bytes, length, nullptr, 0, UTF8PROC_DECOMPOSE);
  if (size < 0) throw std::runtime_error("the text is not UTF-8");
  std::vector<CodePoint> points(static_cast<size_t>(size));
  utf8proc_decompose(bytes, length, points.data(), size, UTF8PROC_DECOMPOSE);
  return points;
}

bool is_space(CodePoint point) {
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return point == '\t' || point == '\n' || point == '\r';
  }
}

/// Accents, and characters without a shape.
bool is_left_out(CodePoint point) {
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return true;
    default:
      return point == 0xFFFD;  // stands for what could not be decoded
  }
}

bool is_punctuation(CodePoint point) {
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return point < 0x80 && std::strchr("$+<=>^`|~", point) != nullptr;  // symbols, to Unicode
  }
}

/// BERT's choice of blocks: each of these characters is a word.
bool is_chinese(CodePoint point) {
  const auto between = [point](CodePoint first, CodePoint last) {
    return first <= point && point <= last;
  };
  return between(0x4E00, 0x9FFF) || between(0x3400, 0x4DBF) || between(0x20000, 0x2A6DF) ||
         between(0x2A700, 0x2B73F) || between(0x2B740, 0x2B81F) || between(0x2B820, 0x2CEAF) ||
         between(0xF900, 0xFAFF) || between(0x2F800, 0x2FA1F);
}

void append_utf8(CodePoint point, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto size = utf8proc_encode_char(point, bytes.data());
  text.append(bytes.begin(), bytes.begin() + size);
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  for (const auto point : decompose(text)) {
    const bool space = is_space(point);
    if (!space && is_left_out(point)) continue;
    const bool alone = is_punctuation(point) || is_chinese(point);
    if (!space) {
      if (!in_word || alone) words.emplace_back();
      append_utf8(utf8proc_tolower(point), words.back());
    }
    in_word = !space && !alone;
  }
  return words;
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(const std::string& vocabulary_path) {
  auto file = open_input(vocabulary_path);
  for (std::string piece; std::getline(file, piece); ++size_) {
    if (!piece.empty() && piece.back() == '\r') piece.pop_back();
    const bool continues = piece.rfind(kContinues, 0) == 0 && piece.size() > kContinues.size();
    if (continues) {
      continuations_[piece.substr(kContinues.size())] = size_;
    } else {
      starts_[piece] = size_;
    }
  }
  for (const auto* special : kSpecials) {
    const auto found = starts_.find(special);
    if (found == starts_.end()) {
      throw std::runtime_error(vocabulary_path + " is no vocabulary of BERT: it holds no " +
                               special);
    }
    specials_.insert(*found);
  }
}

std::vector<int64_t> WordPieceTokenizer::encode(std::string_view text, size_t max_length) const {
  std::vector<int64_t> ids = {specials_.at("[CLS]")};
  while (ids.size() < max_length) {
    size_t place = std::string_view::npos;  // of the first special piece in what is left
    const Ids::value_type* special = nullptr;
    for (const auto& candidate : specials_) {
      const auto found = text.find(candidate.first);
      if (found >= place) continue;
      place = found;
      special = &candidate;
    }
    append_text(text.substr(0, place), ids);
    if (special == nullptr) break;
    ids.push_back(special->second);
    text.remove_prefix(place + special->first.size());
  }
  ids.resize(std::min(ids.size(), max_length - 1));
  ids.push_back(specials_.at("[SEP]"));
  return ids;
}

/// Text without special pieces.
void WordPieceTokenizer::append_text(std::string_view text, std::vector<int64_t>& ids) const {
  for (const auto& word : split_words(text)) append_word(word, ids);
}

/// The longest piece that the word begins with, then the longest that its rest does, and so on.
void WordPieceTokenizer::append_word(std::string_view word, std::vector<int64_t>& ids) const {
  const auto known = ids.size();
  bool unknown = count_characters(word) > kLongestWord;
  while (!unknown && !word.empty()) {
    const auto& pieces = ids.size() == known ? starts_ : continuations_;
    auto size = word.size();
    auto found = pieces.find(word);
    while (found == pieces.end() && size > 1) found = pieces.find(word.substr(0, --size));
    unknown = found == pieces.end();
    if (!unknown) {
      ids.push_back(found->second);
      word.remove_prefix(size);
    }
  }
  if (unknown) {
    ids.resize(known);
    ids.push_back(specials_.at("[UNK]"));
  }
}

}  // namespace heed::examples
