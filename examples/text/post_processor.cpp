#include "parts.h"

#include <string>

namespace heed::examples::text {

namespace {

constexpr size_t kMostSurroundings = 1000;

class PostProcessorReader {
 public:
  explicit PostProcessorReader(const std::function<bool(int64_t)>& is_id) : is_id_(is_id) {}

  void read(const std::string& type, JsonFields& fields) {
    if (type == "ByteLevel") {
      // These concern offsets, which are not computed.
      fields.pass_over({"add_prefix_space", "trim_offsets", "use_regex"});
      return;
    }
    if (adds_) refuse(fields.place_of("type"), type, "is the second that adds tokens");
    adds_ = true;
    if (type == "TemplateProcessing") {
      read_template(fields);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      surroundings_.before = {read_token(fields, "cls")};
      surroundings_.behind = {read_token(fields, "sep")};
      if (type == "RobertaProcessing") fields.pass_over({"add_prefix_space", "trim_offsets"});
    } else {
      refuse(fields.place_of("type"), type,
             "must be BertProcessing, ByteLevel, RobertaProcessing, Sequence or "
             "TemplateProcessing");
    }
  }

  Surroundings surroundings() const { return surroundings_; }

 private:
  int64_t read_id(const Json& value, const std::string& place) const {
    const auto id = whole_number_of(value, place, kLargestId);
    if (!is_id_(id)) refuse(place, value, "must be the id of a token");
    return id;
  }

  /// ["[CLS]", 101]
  int64_t read_token(JsonFields& fields, const std::string& name) const {
    const auto& token = fields.at(name);
    if (!token.is_array() || token.size() != 2 || !token[0].is_string()) {
      refuse(fields.place_of(name), token, "must be an array of a token and its id");
    }
    return read_id(token[1], fields.place_of(name) + "[1]");
  }

  void read_template(JsonFields& fields) {
    fields.pass_over({"pair"});  // for two texts
    const Json none = Json::object();
    const auto* given = fields.find("special_tokens");
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
      auto& ids = has_text ? surroundings_.behind : surroundings_.before;
      append_ids(tokens.at(id), tokens.place_of(id), ids);
      if (ids.size() > kMostSurroundings) {
        refuse(place, element,
               "is one too many: at most " + std::to_string(kMostSurroundings) +
                   " tokens are put before or behind a text here");
      }
    };
    for_each_element(fields.at("single"), fields.place_of("single"), read_piece);
    if (!has_text) refuse(fields.place_of("single"), fields.at("single"), "must have a Sequence");
  }

  /// One of the special tokens of a template, which may be several of the vocabulary.
  void append_ids(const Json& json, const std::string& place, std::vector<int64_t>& ids) const {
    JsonFields token(json, place);
    token.pass_over({"id", "tokens"});
    const auto read = [&](const Json& id, const std::string& place_of_id) {
      ids.push_back(read_id(id, place_of_id));
    };
    for_each_element(token.at("ids"), token.place_of("ids"), read);
    token.expect_no_others();
  }

  const std::function<bool(int64_t)>& is_id_;
  Surroundings surroundings_;
  bool adds_ = false;
};

}  // namespace

Surroundings read_post_processor(const Json* post_processor,
                                 const std::function<bool(int64_t)>& is_id) {
  PostProcessorReader reader(is_id);
  const auto read = [&](const std::string& type, JsonFields& fields) -> size_t {
    reader.read(type, fields);
    return 0;  // no more than one adds tokens
  };
  if (post_processor != nullptr) {
    for_each_rule(*post_processor, "post_processor", "processors", read);
  }
  return reader.surroundings();
}

}  // namespace heed::examples::text
