#include "parts.h"

#include <string>

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

Surroundings read_template(JsonFields& fields, const IsId& is_id) {
  fields.pass_over({"pair"});  // for two texts
  const Json none = Json::object();
  const auto* given = fields.find("special_tokens");
  Surroundings surroundings;
  bool has_text = false;
  const auto read_piece = [&](const Json& element, const std::string& place) {
    JsonFields piece(element, place);
    const bool is_text = piece.find("Sequence") != nullptr;
    const auto* kind = is_text ? "Sequence" : "SpecialToken";
    JsonFields of_piece(piece.at(kind), piece.place_of(kind));
    piece.expect_no_others();
    const auto id = of_piece.text("id");
    of_piece.pass_over({"type_id"});
    of_piece.expect_no_others();
    if (is_text) {
      if (id != "A" || has_text) refuse(of_piece.place_of("id"), id, "must be A, and once");
      has_text = true;
      return;
    }
    JsonFields tokens(given == nullptr ? none : *given, fields.place_of("special_tokens"));
    auto& ids = has_text ? surroundings.behind : surroundings.before;
    append_ids(tokens.at(id), tokens.place_of(id), is_id, ids);
    if (ids.size() > kMostSurroundings) {
      refuse(place, element,
             "is one too many: at most " + std::to_string(kMostSurroundings) +
                 " tokens are put before or behind a text here");
    }
  };
  for_each_element(fields.at("single"), fields.place_of("single"), read_piece);
  if (!has_text) refuse(fields.place_of("single"), fields.at("single"), "must have a Sequence");
  return surroundings;
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
      surroundings.before = {read_token(fields, "cls", is_id)};
      surroundings.behind = {read_token(fields, "sep", is_id)};
      if (type == "RobertaProcessing") fields.pass_over({"add_prefix_space", "trim_offsets"});
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
