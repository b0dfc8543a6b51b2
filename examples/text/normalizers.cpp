// SPDX-License-Identifier: BSD-3-Clause
#include "parts.h"

#include <utility>
#include <vector>

#include "pattern.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

std::string lower_case(std::string_view text) { return map_characters(text, append_lower_case); }

std::string without(std::string_view text, bool (*is)(char32_t)) {
  return map_characters(text, [is](char32_t character, std::string& kept) {
    if (!is(character)) append_character(character, kept);
  });
}

/// Blocks of ideographs. One begins at 2B920 in tokenizers, at 2B820 in Unicode and in BERT.
bool is_chinese(char32_t character) {
  const auto between = [character](char32_t first, char32_t last) {
    return first <= character && character <= last;
  };
  return between(0x4E00, 0x9FFF) || between(0x3400, 0x4DBF) || between(0x20000, 0x2A6DF) ||
         between(0x2A700, 0x2B73F) || between(0x2B740, 0x2B81F) || between(0x2B920, 0x2CEAF) ||
         between(0xF900, 0xFAFF) || between(0x2F800, 0x2FA1F);
}

void append_clean(char32_t character, std::string& text) {
  const bool is_space = character == U'\t' || character == U'\n' || character == U'\r';
  if (!is_space && (is_other(character) || character == 0xFFFD)) return;
  append_character(is_white_space(character) ? U' ' : character, text);
}

void append_spaced(char32_t character, std::string& text) {
  const bool chinese = is_chinese(character);
  if (chinese) text += ' ';
  append_character(character, text);
  if (chinese) text += ' ';
}

/// The normalization that BERT begins with (Devlin et al. 2019, arXiv:1810.04805).
Normalizer read_bert_normalizer(JsonFields& fields) {
  const bool cleans = fields.boolean("clean_text");
  const bool spaces_chinese = fields.boolean("handle_chinese_chars");
  const bool lowers_case = fields.boolean("lowercase");
  const bool strips_accents = fields.boolean_or("strip_accents", lowers_case);
  return [=](std::string_view text) {
    std::string normalized(text);
    if (cleans) normalized = map_characters(normalized, append_clean);
    if (spaces_chinese) normalized = map_characters(normalized, append_spaced);
    if (strips_accents) {
      normalized = without(normalize(normalized, NormalForm::nfd), is_nonspacing_mark);
    }
    return lowers_case ? lower_case(normalized) : normalized;
  };
}

Normalizer read_prepend(JsonFields& fields) {
  return [prefix = fields.text("prepend")](std::string_view text) {
    if (text.empty()) return std::string();
    WorkLimit::spend_bytes(prefix.size());
    return prefix + std::string(text);
  };
}

/// Spaces at the ends.
Normalizer read_strip(JsonFields& fields) {
  const bool left = fields.boolean("strip_left");
  const bool right = fields.boolean("strip_right");
  return [=](std::string_view text) {
    const auto begin = left ? behind_spaces(text, 0) : 0;
    const auto end = right ? before_spaces(text, begin, text.size()) : text.size();
    return std::string(text.substr(begin, end - begin));
  };
}

Normalizer read_form(NormalForm form) {
  return [form](std::string_view text) { return normalize(text, form); };
}

Normalizer read_simple(const std::string& type, JsonFields& fields) {
  if (type == "NFC") return read_form(NormalForm::nfc);
  if (type == "NFD") return read_form(NormalForm::nfd);
  if (type == "NFKC") return read_form(NormalForm::nfkc);
  if (type == "NFKD") return read_form(NormalForm::nfkd);
  if (type == "Lowercase") return lower_case;
  if (type == "StripAccents") return [](std::string_view text) { return without(text, is_mark); };
  if (type == "BertNormalizer") return read_bert_normalizer(fields);
  if (type == "Replace") return read_replacement(fields);
  if (type == "Prepend") return read_prepend(fields);
  if (type == "Precompiled") return read_precompiled(fields);
  if (type == "Strip") return read_strip(fields);
  refuse(fields.place_of("type"), type,
         "must be BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Precompiled, Prepend, Replace, "
         "Sequence, Strip or StripAccents");
}

}  // namespace

Normalizer read_normalizer(const Json* normalizer) {
  std::vector<Normalizer> normalizers;
  const auto read = [&](const std::string& type, JsonFields& fields) {
    normalizers.push_back(read_simple(type, fields));
    return normalizers.size();
  };
  for_each_rule(normalizer, "normalizer", "normalizers", read);
  return [normalizers = std::move(normalizers)](std::string_view text) {
    std::string normalized(text);
    for (const auto& normalize : normalizers) {
      normalized = normalize(normalized);
      WorkLimit::spend_bytes(normalized.size());  // a chain may double the text many times
    }
    return normalized;
  };
}

Normalizer read_replacement(JsonFields& fields) {
  auto pattern = read_pattern(fields.at("pattern"), fields.place_of("pattern"));
  return [pattern = std::move(pattern), content = fields.text("content")](std::string_view text) {
    std::string replaced;
    size_t done = 0;
    pattern(text, [&](size_t begin, size_t end) {
      WorkLimit::spend_bytes(begin - done + content.size());
      replaced += text.substr(done, begin - done);
      replaced += content;
      done = end;
    });
    replaced += text.substr(done);
    return replaced;
  };
}

}  // namespace heed::examples::text
