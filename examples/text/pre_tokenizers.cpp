// SPDX-License-Identifier: BSD-3-Clause
#include "parts.h"

#include <string>
#include <utility>
#include <vector>

#include "byte_level.h"
#include "pattern.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

// GPT-2's, in the syntax of tokenizers.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The ways to cut a text at the matches of a pattern.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Span {
  size_t begin, end;
  bool is_match;
};

/// The matches and what lies between them.
std::vector<Span> spans_of(std::string_view text, const Pattern& pattern, bool invert) {
  std::vector<Span> spans;
  size_t done = 0;
  pattern(text, [&](size_t begin, size_t end) {
    if (done < begin) spans.push_back({done, begin, invert});
    spans.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) spans.push_back({done, text.size(), invert});
  return spans;
}

/// Whether two neighbors are one word.
bool belong_together(const Span& left, const Span& right, Behavior behavior) {
  if (behavior == Behavior::contiguous) return left.is_match == right.is_match;
  const bool with_previous = right.is_match && !left.is_match;
  const bool with_next = left.is_match && !right.is_match;
  return (behavior == Behavior::merged_with_previous && with_previous) ||
         (behavior == Behavior::merged_with_next && with_next);
}

void emit_words(std::string_view text, const std::vector<Span>& spans, Behavior behavior,
                const Emit& emit) {
  for (size_t i = 0; i < spans.size();) {
    auto last = i;
    while (last + 1 < spans.size() && belong_together(spans[last], spans[last + 1], behavior)) {
      ++last;
    }
    const bool left_out = behavior == Behavior::removed && spans[i].is_match;
    if (!left_out) emit(text.substr(spans[i].begin, spans[last].end - spans[i].begin));
    i = last + 1;
  }
}

PreTokenizer split_by(Pattern pattern, Behavior behavior, bool invert = false) {
  return [=, pattern = std::move(pattern)](std::string_view text, const Emit& emit) {
    emit_words(text, spans_of(text, pattern, invert), behavior, emit);
  };
}

Behavior read_behavior(JsonFields& fields, const std::string& name) {
  const auto behavior = fields.text(name);
  if (behavior == "Removed") return Behavior::removed;
  if (behavior == "Isolated") return Behavior::isolated;
  if (behavior == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (behavior == "MergedWithNext") return Behavior::merged_with_next;
  if (behavior == "Contiguous") return Behavior::contiguous;
  refuse(fields.place_of(name), behavior,
         "must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

PreTokenizer read_split(JsonFields& fields) {
  auto pattern = read_pattern(fields.at("pattern"), fields.place_of("pattern"));
  return split_by(std::move(pattern), read_behavior(fields, "behavior"), fields.boolean("invert"));
}

bool is_punctuation_to_bert(char32_t character) {
  const bool is_ascii_symbol =
      character < 0x80 &&
      std::string_view("$+<=>^`|~").find(static_cast<char>(character)) != std::string_view::npos;
  return is_ascii_symbol || is_punctuation(character);
}

/// Bytes become characters, after a space before the text and GPT-2's split, if those are wanted.
PreTokenizer read_byte_level(JsonFields& fields) {
  const bool adds_space = fields.boolean("add_prefix_space");
  fields.pass_over({"trim_offsets"});
  PreTokenizer split = [](std::string_view text, const Emit& emit) { emit(text); };
  if (fields.boolean_or("use_regex", true)) {
    split =
        split_by(read_pattern({{"Regex", kGpt2Pattern}}, "GPT-2's pattern"), Behavior::isolated);
  }
  return [adds_space, split = std::move(split)](std::string_view text, const Emit& emit) {
    std::string characters;
    const Emit emit_characters = [&](std::string_view word) {
      characters.clear();
      append_byte_characters(word, characters);
      emit(characters);
    };
    if (adds_space && text[0] != ' ') {
      split(" " + std::string(text), emit_characters);
    } else {
      split(text, emit_characters);
    }
  };
}

/// Spaces become another character, often U+2581, which also stands before the text, or only before
/// one `at_beginning`, unless it is there already. Words begin at these.
PreTokenizer read_metaspace(JsonFields& fields, bool at_beginning, bool is_first) {
  const auto space = fields.text("replacement");
  const bool of_old = fields.find("prepend_scheme") == nullptr;
  const bool adds_space = fields.boolean_or("add_prefix_space", true);
  fields.pass_over({"str_rep"});
  const auto scheme = of_old ? (adds_space ? "always" : "never") : fields.text("prepend_scheme");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    refuse(fields.place_of("prepend_scheme"), scheme, "must be always, first or never");
  }
  if (scheme == "first" && !is_first) {
    refuse(fields.place_of("prepend_scheme"), scheme, "must not stand behind other rules");
  }
  if (space.empty()) refuse(fields.place_of("replacement"), space, "must not be empty");
  const bool prepends = scheme == "always" || (scheme == "first" && at_beginning);
  PreTokenizer split = [](std::string_view text, const Emit& emit) { emit(text); };
  if (fields.boolean_or("split", true)) {
    split = split_by(read_pattern({{"String", space}}, "replacement"), Behavior::merged_with_next);
  }
  return [=, split = std::move(split)](std::string_view text, const Emit& emit) {
    std::string replaced;
    for (const auto byte : text) {
      if (byte == ' ') {
        replaced += space;
      } else {
        replaced += byte;
      }
    }
    if (prepends && replaced.compare(0, space.size(), space) != 0) replaced.insert(0, space);
    WorkLimit::spend_bytes(replaced.size());
    split(replaced, emit);
  };
}

/// At spaces, which are left out, and around punctuation.
void split_for_bert(std::string_view text, const Emit& emit) {
  static const auto at_spaces = split_by(each_character(is_white_space), Behavior::removed);
  static const auto at_punctuation =
      split_by(each_character(is_punctuation_to_bert), Behavior::isolated);
  at_spaces(text, [&](std::string_view word) { at_punctuation(word, emit); });
}

PreTokenizer read_simple_pre_tokenizer(const std::string& type, JsonFields& fields) {
  if (type == "ByteLevel") return read_byte_level(fields);
  if (type == "Split") return read_split(fields);
  if (type == "BertPreTokenizer") return split_for_bert;
  if (type == "WhitespaceSplit") return split_by(each_character(is_white_space), Behavior::removed);
  if (type == "Whitespace") {
    const auto word = std::string("[") + kWordCharacters + "]+";
    const auto rest = std::string("[^") + kWordCharacters + "\\t-\\r\\x{85}\\p{Z}]+";
    return split_by(each_match(word + "|" + rest), Behavior::removed, true);
  }
  if (type == "Digits") {
    const bool individual = fields.boolean("individual_digits");
    return split_by(each_character(is_number),
                    individual ? Behavior::isolated : Behavior::contiguous);
  }
  if (type == "Punctuation") {
    const bool given = fields.find("behavior") != nullptr;
    return split_by(each_character(is_punctuation_to_bert),
                    given ? read_behavior(fields, "behavior") : Behavior::isolated);
  }
  refuse(fields.place_of("type"), type,
         "must be BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, "
         "Whitespace or WhitespaceSplit");
}

using Steps = std::vector<PreTokenizer>;

void run_steps(const Steps& steps, size_t done, std::string_view text, const Emit& emit) {
  if (done == steps.size()) {
    emit(text);
    return;
  }
  steps[done](text, [&](std::string_view word) { run_steps(steps, done + 1, word, emit); });
}

}  // namespace

PreTokenizer read_pre_tokenizer(const Json* pre_tokenizer, bool at_beginning) {
  Steps steps;
  const auto read = [&](const std::string& type, JsonFields& fields) {
    steps.push_back(type == "Metaspace" ? read_metaspace(fields, at_beginning, steps.empty())
                                        : read_simple_pre_tokenizer(type, fields));
    return steps.size();
  };
  for_each_rule(pre_tokenizer, "pre_tokenizer", "pretokenizers", read);
  return [steps = std::move(steps)](std::string_view text, const Emit& emit) {
    run_steps(steps, 0, text, emit);
  };
}

}  // namespace heed::examples::text
