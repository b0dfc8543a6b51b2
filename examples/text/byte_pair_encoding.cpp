// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <functional>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "parts.h"
#include "seeded_hash.h"
#include "unicode.h"

namespace heed::examples::text {

namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

struct Merge {
  uint32_t rank;
  int64_t id;  // of the token that the two become
};

class Merges {
 public:
  Merges(const Json& merges, const Vocabulary& vocabulary) {
    const bool in_lines = merges.is_array() && !merges.empty() && merges[0].is_string();
    merges_.reserve(merges.size());
    uint32_t rank = 0;
    for_each_element(merges, "model.merges", [&](const Json& merge, const std::string& place) {
      const auto pair = in_lines ? from_line(merge) : from_pair(merge);
      if (!pair) refuse(place, merge, "must be two tokens, written like the others");
      const std::string left(pair->first), right(pair->second);
      const auto own_rank = rank++;
      if (in_lines && left == kVersion) return;
      const auto left_id = vocabulary.id_of(left), right_id = vocabulary.id_of(right);
      const auto both = vocabulary.id_of(left + right);
      if (!left_id || !right_id || !both) {
        refuse(place, left + " " + right, "must be two tokens of model.vocab that make a third");
      }
      // A pair may occur twice: the later one counts.
      merges_[key(*left_id, *right_id)] = {own_rank, *both};
    });
  }

  const Merge* find(int64_t left, int64_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

 private:
  using Pair = std::pair<std::string_view, std::string_view>;
  static constexpr std::string_view kVersion = "#version";

  static uint64_t key(int64_t left, int64_t right) {
    return static_cast<uint64_t>(left) << 32U | static_cast<uint64_t>(right);
  }

  /// "a b". A line "#version ..." stands in front in files of old.
  static std::optional<Pair> from_line(const Json& value) {
    if (!value.is_string()) return std::nullopt;
    const std::string_view line = value.get_ref<const std::string&>();
    if (line.substr(0, kVersion.size()) == kVersion) return Pair(kVersion, "");
    const auto space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return std::nullopt;
    }
    return Pair(line.substr(0, space), line.substr(space + 1));
  }

  /// ["a", "b"]
  static std::optional<Pair> from_pair(const Json& value) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
      return std::nullopt;
    }
    return Pair(value[0].get_ref<const std::string&>(), value[1].get_ref<const std::string&>());
  }

  std::unordered_map<uint64_t, Merge, SeededHash> merges_;  // by the ids of left and right
};

struct BytePairOptions {
  std::optional<int64_t> unknown;  // id of characters that have no token
  bool fuse_unknown = false;       // several of them are one token
  bool ignore_merges = false;      // a word that is a token needs no merges
  /// Ids of bytes, of which characters consist that have no token.
  std::optional<std::array<int64_t, 256>> bytes;
};

/// Merges the tokens of a word, and appends those that are left to `ids`.
void append_merged(const Merges& merges, const std::vector<int64_t>& tokens,
                   std::vector<int64_t>& ids) {
  constexpr int64_t kGone = -1;
  struct Token {
    int64_t id;
    size_t previous, next;
  };
  std::vector<Token> word;
  for (size_t i = 0; i < tokens.size(); ++i) {
    word.push_back({tokens[i], i > 0 ? i - 1 : kNone, i + 1 < tokens.size() ? i + 1 : kNone});
  }
  // Ranks and the places of left tokens. On top: the first that was learned, then the leftmost.
  using Proposal = std::pair<uint32_t, size_t>;
  std::priority_queue<Proposal, std::vector<Proposal>, std::greater<>> proposals;
  const auto propose = [&](size_t place) {
    const auto* found = merges.find(word[place].id, word[word[place].next].id);
    if (found != nullptr) proposals.emplace(found->rank, place);
  };
  for (size_t place = 0; place + 1 < word.size(); ++place) propose(place);
  while (!proposals.empty()) {
    const auto [rank, place] = proposals.top();
    proposals.pop();
    auto& left = word[place];
    // Since it was proposed, one of the two may have merged.
    if (left.id == kGone || left.next == kNone) continue;
    auto& right = word[left.next];
    const auto* found = merges.find(left.id, right.id);
    if (found == nullptr || found->rank != rank) continue;
    left.id = found->id;
    right.id = kGone;
    left.next = right.next;
    if (left.next != kNone) {
      word[left.next].previous = place;
      propose(place);
    }
    if (left.previous != kNone) propose(left.previous);
  }
  for (const auto& token : word) {
    if (token.id != kGone) ids.push_back(token.id);
  }
}

/// Ids of the tokens <0x00> to <0xFF>.
std::array<int64_t, 256> read_byte_ids(const Vocabulary& vocabulary) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::array<int64_t, 256> ids{};
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    const auto token = std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
    const auto id = vocabulary.id_of(token);
    if (!id) refuse("model.byte_fallback", true, "needs a token " + token + " in model.vocab");
    ids[byte] = *id;
  }
  return ids;
}

void expect_empty(JsonFields& fields, const std::string& name) {
  const auto text = fields.find_text(name);
  if (text && !text->empty()) refuse(fields.place_of(name), *text, "must be null or empty");
}

BytePairOptions read_options(JsonFields& fields, const Vocabulary& vocabulary) {
  const auto* dropout = fields.find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    refuse("model.dropout", *dropout, "must be null or 0");
  }
  expect_empty(fields, "continuing_subword_prefix");
  expect_empty(fields, "end_of_word_suffix");
  BytePairOptions options;
  options.fuse_unknown = fields.boolean_or("fuse_unk", false);
  options.ignore_merges = fields.boolean_or("ignore_merges", false);
  if (const auto unknown = fields.find_text("unk_token")) {
    options.unknown = vocabulary.id_of(*unknown);
    if (!options.unknown) refuse("model.unk_token", *unknown, "must be in model.vocab");
  }
  if (fields.boolean_or("byte_fallback", false)) options.bytes = read_byte_ids(vocabulary);
  return options;
}

}  // namespace

AppendWord read_byte_pair_encoding(JsonFields& model,
                                   const std::shared_ptr<const Vocabulary>& vocabulary) {
  const auto options = read_options(model, *vocabulary);
  const auto merges = std::make_shared<const Merges>(model.at("merges"), *vocabulary);
  return [=](std::string_view word, std::vector<int64_t>& ids) {
    if (options.ignore_merges) {
      if (const auto id = vocabulary->id_of(word)) {
        ids.push_back(*id);
        return;
      }
    }
    std::vector<int64_t> tokens;
    bool after_unknown = false;
    for (size_t begin = 0, end = 0; begin < word.size(); begin = end) {
      next_character(word, end);
      const auto character = word.substr(begin, end - begin);
      const auto id = vocabulary->id_of(character);
      if (id) {
        tokens.push_back(*id);
      } else if (options.bytes) {
        for (const auto byte : character) {
          tokens.push_back((*options.bytes)[static_cast<unsigned char>(byte)]);
        }
      } else if (options.unknown && !(options.fuse_unknown && after_unknown)) {
        tokens.push_back(*options.unknown);
      }
      after_unknown = !id;
    }
    append_merged(*merges, tokens, ids);
  };
}

}  // namespace heed::examples::text
