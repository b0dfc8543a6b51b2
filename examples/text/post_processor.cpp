// SPDX-License-Identifier: BSD-3-Clause
#include "parts.h"

#include <string>
#include <utility>

namespace heed::examples::text {

namespace {

constexpr size_t kMostSurroundings = 1000;

using IsId = std::function<bool(int64_t)>;

int64_t read_id(const Json& value, const std::string& place, const IsId& is_id) {
  const auto id = whole_number_of(value, place, kLargestId);
  if (!is_id(id)) refuse(place, value, "must be the id of a token");
  return id;
}

/// ["[CLS]", 101]
int64_t read_token(JsonFields& fields, const std::string& name, const IsId& is_id) {
  const auto& token = fields.at(name);
  if (!token.is_array() || token.size() != 2 || !token[0].is_string()) {
    refuse(fields.place_of(name), token, "must be an array of a token and its id");
  }
  return read_id(token[1], fields.place_of(name) + "[1]", is_id);
}

/// One of the special tokens of a template, which may be several of the vocabulary.
void append_ids(const Json& json, const std::string& place, const IsId& is_id,
                std::vector<int64_t>& ids) {
  JsonFields token(json, place);
  token.pass_over({"id", "tokens"});
  const auto read = [&](const Json& id, const std::string& place_of_id) {
    ids.push_back(read_id(id, place_of_id, is_id));
  };
  for_each_element(token.at("ids"), token.place_of("ids"), read);
  token.expect_no_others();
}

/// A piece of a template: a text, A or B, or special tokens.
struct TemplatePiece {
  std::string text;  // empty for tokens
  std::vector<int64_t> ids;
  int64_t type;
};

TemplatePiece read_piece(const Json& element, const std::string& place, JsonFields& tokens,
                         const IsId& is_id) {
  JsonFields piece(element, place);
  const bool is_text = piece.find("Sequence") != nullptr;
  const auto* kind = is_text ? "Sequence" : "SpecialToken";
  JsonFields of_piece(piece.at(kind), piece.place_of(kind));
  piece.expect_no_others();
  const auto id = of_piece.text("id");
  TemplatePiece read;
  read.type =
      of_piece.find("type_id") == nullptr ? 0 : of_piece.whole_number("type_id", kLargestId);
  of_piece.expect_no_others();
  if (is_text) {
    read.text = id;
  } else {
    append_ids(tokens.at(id), tokens.place_of(id), is_id, read.ids);
  }
  return read;
}

/// Refuses more special tokens than a template may have.
void check_count(size_t count, const Json& element, const std::string& place) {
  if (count <= kMostSurroundings) return;
  refuse(place, element,
         "is one too many: at most " + std::to_string(kMostSurroundings) +
             " tokens are put before or behind a text here");
}

void read_single(JsonFields& fields, JsonFields& tokens, const IsId& is_id,
                 Surroundings& surroundings) {
  bool has_text = false;
  const auto read = [&](const Json& element, const std::string& place) {
    const auto piece = read_piece(element, place, tokens, is_id);
    if (!piece.text.empty()) {
      if (piece.text != "A" || has_text) {
        refuse(place + ".Sequence.id", piece.text, "must be A, and once");
      }
      has_text = true;
    }
    auto& ids = has_text ? surroundings.behind : surroundings.before;
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
    check_count(ids.size(), element, place);
  };
  for_each_element(fields.at("single"), fields.place_of("single"), read);
  if (!has_text) refuse(fields.place_of("single"), fields.at("single"), "must have a Sequence");
}

/// An empty template says nothing.
void read_pair(JsonFields& fields, JsonFields& tokens, const IsId& is_id,
               Surroundings& surroundings) {
  surroundings.pair.clear();
  const auto* pair = fields.find("pair");
  if (pair == nullptr || (pair->is_array() && pair->empty())) return;
  std::string texts;
  size_t count = 0;
  const auto read = [&](const Json& element, const std::string& place) {
    auto piece = read_piece(element, place, tokens, is_id);
    auto kind = PairPart::Kind::tokens;
    if (!piece.text.empty()) {
      const bool is_known = piece.text == "A" || piece.text == "B";
      if (!is_known || texts.find(piece.text) != std::string::npos) {
        refuse(place + ".Sequence.id", piece.text, "must be A or B, and each once");
      }
      texts += piece.text;
      kind = piece.text == "A" ? PairPart::Kind::first : PairPart::Kind::second;
    }
    count += piece.ids.size();
    check_count(count, element, place);
    surroundings.pair.push_back({kind, piece.type, std::move(piece.ids)});
  };
  for_each_element(*pair, fields.place_of("pair"), read);
  if (texts.size() != 2) refuse(fields.place_of("pair"), *pair, "must have two of Sequence");
}

Surroundings read_template(JsonFields& fields, const IsId& is_id) {
  const Json none = Json::object();
  const auto* given = fields.find("special_tokens");
  JsonFields tokens(given == nullptr ? none : *given, fields.place_of("special_tokens"));
  Surroundings surroundings;
  read_single(fields, tokens, is_id, surroundings);
  read_pair(fields, tokens, is_id, surroundings);
  return surroundings;
}

/// BERT's, whose second text has another type, or RoBERTa's, which has no types and a token more.
Surroundings surround(int64_t cls, int64_t sep, bool like_roberta) {
  using Kind = PairPart::Kind;
  const int64_t second = like_roberta ? 0 : 1;
  const auto between = like_roberta ? std::vector<int64_t>{sep, sep} : std::vector<int64_t>{sep};
  return {{cls},
          {sep},
          {{Kind::tokens, 0, {cls}},
           {Kind::first, 0},
           {Kind::tokens, 0, between},
           {Kind::second, second},
           {Kind::tokens, second, {sep}}}};
}

}  // namespace

Surroundings read_post_processor(const Json* post_processor, const IsId& is_id) {
  Surroundings surroundings;
  bool adds = false;
  const auto read = [&](const std::string& type, JsonFields& fields) -> size_t {
    if (type == "ByteLevel") {
      // These concern offsets, which are not computed.
      fields.pass_over({"add_prefix_space", "trim_offsets", "use_regex"});
      return 0;
    }
    if (adds) refuse(fields.place_of("type"), type, "is the second that adds tokens");
    adds = true;
    if (type == "TemplateProcessing") {
      surroundings = read_template(fields, is_id);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      const bool like_roberta = type == "RobertaProcessing";
      surroundings = surround(read_token(fields, "cls", is_id), read_token(fields, "sep", is_id),
                              like_roberta);
      if (like_roberta) fields.pass_over({"add_prefix_space", "trim_offsets"});
    } else {
      refuse(fields.place_of("type"), type,
             "must be BertProcessing, ByteLevel, RobertaProcessing, Sequence or "
             "TemplateProcessing");
    }
    return 0;  // no more than one adds tokens
  };
  for_each_rule(post_processor, "post_processor", "processors", read);
  return surroundings;
}

}  // namespace heed::examples::text
