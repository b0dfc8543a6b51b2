// SPDX-License-Identifier: BSD-3-Clause
#include "sentence_piece_folder.h"

#include <filesystem>
#include <iterator>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sentence_piece_model.h"
#include "support/files.h"
#include "support/json_file.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

constexpr const char* kSpace = "\u2581";
constexpr int64_t kMostExtraIds = 10'000;
constexpr uintmax_t kMostBytes = uintmax_t{1} << 26U;  // ten times a large vocabulary's

enum class Family { t5, xlm_roberta, llama, gemma };

/// A tokenizer while its description is made.
struct Draft {
  std::vector<std::pair<std::string, double>> pieces;  // in the order of their ids
  Json ids = Json::object();                           // of the pieces
  std::map<int64_t, Json> added;                       // by their ids

  void append(const std::string& piece, double score) {
    if (!ids.emplace(piece, pieces.size()).second) {
      throw std::runtime_error("the model must not have the piece " + in_quotes(piece) + " twice");
    }
    pieces.emplace_back(piece, score);
  }

  int64_t id_of(const std::string& token, const std::string& place) const {
    const auto found = ids.find(token);
    if (found == ids.end()) refuse(place, token, "must be a piece of the model");
    return found->get<int64_t>();
  }

  /// `flags` may have some of an added token's fields; those that it lacks are false.
  void add(const std::string& token, const std::string& place, bool special,
           const Json& flags = Json::object()) {
    const auto id = id_of(token, place);
    JsonFields fields(flags, place);
    fields.pass_over({"__type", "content", "special", "id"});
    Json description = {{"id", id}, {"content", token}, {"special", special}};
    for (const auto* name : {"single_word", "lstrip", "rstrip", "normalized"}) {
      description[name] = fields.boolean_or(name, false);
    }
    fields.expect_no_others();
    added[id] = std::move(description);
  }
};

Family family_of(const std::string& folder, JsonFields& config) {
  static const std::map<std::string, Family> kByType = {{"t5", Family::t5},
                                                        {"mt5", Family::t5},
                                                        {"xlm-roberta", Family::xlm_roberta},
                                                        {"llama", Family::llama},
                                                        {"gemma", Family::gemma},
                                                        {"gemma2", Family::gemma},
                                                        {"gemma3_text", Family::gemma}};
  static const std::map<std::string, Family> kByClass = {
      {"T5Tokenizer", Family::t5},
      {"XLMRobertaTokenizer", Family::xlm_roberta},
      {"LlamaTokenizer", Family::llama},
      {"GemmaTokenizer", Family::gemma}};
  constexpr auto kRule =
      "is of no family whose model of SentencePiece is known here (T5, XLM-RoBERTa, Llama, Gemma): "
      "write a tokenizer.json with transformers, by "
      "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)";
  const auto path = folder + "/config.json";
  const auto model = exists(path) ? read_json_object(path) : Json::object();
  JsonFields of_model(model, "config.json");
  const auto type = of_model.find_text("model_type");
  // Some types have another tokenizer than their class says.
  if (type && kByType.count(*type) == 0) refuse("config.json: model_type", *type, kRule);
  auto name = config.find_text("tokenizer_class");
  if (!name && type) return kByType.at(*type);
  if (!name) throw std::runtime_error("tokenizer_config.json: tokenizer_class is missing");
  const auto fast = name->rfind("Fast");
  if (fast != std::string::npos && fast + 4 == name->size()) name->erase(fast);
  const auto found = kByClass.find(*name);
  if (found == kByClass.end()) refuse("tokenizer_config.json: tokenizer_class", *name, kRule);
  return found->second;
}

/// The content of a token, which is a string or has flags.
std::string content_of(const Json& token, const std::string& place) {
  if (!token.is_object()) return text_of(token, place);
  return JsonFields(token, place).text("content");
}

/// A special token by its name, or the family's own.
struct SpecialToken {
  const char* name;
  const char* content;  // nullptr: there is none unless the files say so
};

std::vector<SpecialToken> special_tokens_of(Family family) {
  switch (family) {
    case Family::t5:
      return {{"eos_token", "</s>"},  {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
              {"bos_token", nullptr}, {"sep_token", nullptr}, {"cls_token", nullptr},
              {"mask_token", nullptr}};
    case Family::xlm_roberta:
      return {{"bos_token", "<s>"},    {"eos_token", "</s>"},  {"sep_token", "</s>"},
              {"cls_token", "<s>"},    {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
              {"mask_token", "<mask>"}};
    case Family::llama:
      return {{"unk_token", "<unk>"}, {"bos_token", "<s>"},   {"eos_token", "</s>"},
              {"pad_token", nullptr}, {"sep_token", nullptr}, {"cls_token", nullptr},
              {"mask_token", nullptr}};
    case Family::gemma:
      return {{"unk_token", "<unk>"}, {"bos_token", "<bos>"},   {"eos_token", "<eos>"},
              {"pad_token", "<pad>"}, {"mask_token", "<mask>"}, {"sep_token", nullptr},
              {"cls_token", nullptr}};
  }
  return {};
}

/// The special tokens that the files name, with their flags, or else the family's own.
std::map<std::string, Json> read_special_tokens(Family family, JsonFields& config) {
  std::map<std::string, Json> tokens;
  for (const auto& [name, content] : special_tokens_of(family)) {
    const auto* given = config.find(name);
    if (given != nullptr) {
      tokens[name] = *given;
    } else if (content != nullptr) {
      tokens[name] = content;
    }
  }
  return tokens;
}

void append_pieces(Family family, const SentencePieceModel& model,
                   const std::map<std::string, Json>& tokens, JsonFields& config, Draft& draft) {
  constexpr size_t kReplaced = 3;  // of XLM-RoBERTa: <unk>, <s> and </s>, which stand elsewhere
  const bool of_roberta = family == Family::xlm_roberta;
  size_t begin = 0;
  if (of_roberta) {
    for (const auto* name : {"bos_token", "pad_token", "eos_token", "unk_token"}) {
      draft.append(content_of(tokens.at(name), name), 0);
    }
    begin = kReplaced;
  }
  for (auto i = begin; i < model.pieces.size(); ++i) {
    draft.append(model.pieces[i].text, static_cast<double>(model.pieces[i].score));
  }
  if (of_roberta) draft.append(content_of(tokens.at("mask_token"), "mask_token"), 0);
  if (family != Family::t5) return;
  const auto extra =
      config.find("extra_ids") == nullptr ? 100 : config.whole_number("extra_ids", kMostExtraIds);
  for (auto i = extra; i-- > 0;) {
    const auto token = "<extra_id_" + std::to_string(i) + ">";
    draft.append(token, 0);
    draft.add(token, "extra_ids", true);
  }
}

/// Tokens of lists and maps in the files must be known already, as their ids would be guesses.
void add_listed_tokens(const std::string& folder, JsonFields& config, Draft& draft) {
  const auto check = [&draft](const std::string& token, const std::string& place) {
    const auto id = draft.id_of(token, place);
    if (draft.added.count(id) == 0) refuse(place, token, "must be a special token of the family");
    return id;
  };
  for (const auto* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto* list = config.find(name);
    if (list == nullptr || list->empty()) continue;
    for_each_element(*list, config.place_of(name), [&](const Json& token, const auto& place) {
      check(content_of(token, place), place);
    });
  }
  if (const auto* decoder = config.find("added_tokens_decoder")) {
    for (const auto& [key, token] : decoder->items()) {
      const auto place = config.place_of("added_tokens_decoder." + key);
      JsonFields fields(token, place);
      const auto content = fields.text("content");
      const auto id = draft.id_of(content, place + ".content");
      if (key != std::to_string(id)) refuse(place, key, "must be " + std::to_string(id));
      draft.add(content, place, fields.boolean_or("special", false), token);
    }
  }
  const auto path = folder + "/added_tokens.json";
  if (!exists(path)) return;
  const auto tokens = read_json_object(path);
  for (const auto& [token, id] : tokens.items()) {
    const auto known = check(token, "added_tokens.json");
    if (id != known) refuse("added_tokens.json." + token, id, "must be " + std::to_string(known));
  }
}

void add_tokens(const std::string& folder, const SentencePieceModel& model,
                const std::map<std::string, Json>& tokens, JsonFields& config, Draft& draft) {
  for (const auto& piece : model.pieces) {
    if (piece.is_control && draft.ids.contains(piece.text)) draft.add(piece.text, "", true);
    if (piece.is_user_defined) draft.add(piece.text, "", false);
  }
  for (const auto& [name, token] : tokens) {
    const auto content = content_of(token, name);
    draft.add(content, name, true, token.is_object() ? token : Json::object());
  }
  add_listed_tokens(folder, config, draft);
}

Json describe_unigram(const Draft& draft, int64_t unknown) {
  Json vocabulary = Json::array();
  for (const auto& [piece, score] : draft.pieces) vocabulary.push_back({piece, score});
  return {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(vocabulary)}};
}

/// All pairs of pieces that make another piece, in the order of these.
Json merges_of(const Draft& draft) {
  Json merges = Json::array();
  for (const auto& [piece, score] : draft.pieces) {
    for (size_t place = 0; place < piece.size();) {
      next_character(piece, place);
      if (place >= piece.size()) break;
      WorkLimit::spend(2 + static_cast<int64_t>(piece.size() / 16));  // two hashes
      auto left = piece.substr(0, place), right = piece.substr(place);
      if (!draft.ids.contains(left) || !draft.ids.contains(right)) continue;
      merges.push_back({std::move(left), std::move(right)});
    }
  }
  return merges;
}

Json describe_byte_pairs(const Draft& draft, const Json& unknown) {
  return {{"type", "BPE"},        {"fuse_unk", true},   {"byte_fallback", true},
          {"unk_token", unknown}, {"vocab", draft.ids}, {"merges", merges_of(draft)}};
}

/// A template of texts, such as A, and special tokens.
Json describe_template(const Draft& draft, const std::vector<std::string>& single,
                       const std::vector<std::pair<std::string, int>>& pair) {
  Json special = Json::object();
  const auto piece = [&](const std::string& name, int type) -> Json {
    if (name == "A" || name == "B") return {{"Sequence", {{"id", name}, {"type_id", type}}}};
    special[name] = {{"id", name}, {"ids", {draft.ids.at(name)}}, {"tokens", {name}}};
    return {{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  Json of_single = Json::array(), of_pair = Json::array();
  for (const auto& name : single) of_single.push_back(piece(name, 0));
  for (const auto& [name, type] : pair) of_pair.push_back(piece(name, type));
  return {{"type", "TemplateProcessing"},
          {"single", of_single},
          {"pair", of_pair},
          {"special_tokens", special}};
}

Json metaspace(const std::string& scheme, bool splits) {
  return {{"type", "Metaspace"},
          {"replacement", kSpace},
          {"prepend_scheme", scheme},
          {"split", splits}};
}

Json replacement_of(const std::string& text, const std::string& with) {
  return {{"type", "Replace"}, {"pattern", {{"String", text}}}, {"content", with}};
}

/// T5's and XLM-RoBERTa's.
Json describe_words(Family family, const SentencePieceModel& model, const Draft& draft,
                    JsonFields& config) {
  const bool of_t5 = family == Family::t5;
  const bool adds_space = of_t5 || config.boolean_or("add_prefix_space", true);
  const auto words = metaspace(adds_space ? "always" : "never", true);
  Json description = {{"decoder", words}};
  description["pre_tokenizer"] = {{"type", "Sequence"},
                                  {"pretokenizers", {{{"type", "WhitespaceSplit"}}, words}}};
  if (!model.charsmap.empty()) {
    const std::vector<uint8_t> bytes(model.charsmap.begin(), model.charsmap.end());
    description["normalizer"] = {{"type", "Precompiled"},
                                 {"precompiled_charsmap", Json::binary(bytes)}};
  }
  description["model"] = describe_unigram(draft, of_t5 ? 2 : 3);
  return description;
}

/// Llama's and Gemma's.
Json describe_characters(Family family, const Draft& draft, const Json& unknown,
                         JsonFields& config) {
  const bool of_llama = family == Family::llama;
  const bool adds_space = of_llama && config.boolean_or("add_prefix_space", true);
  const bool of_old = config.boolean_or("legacy", false);
  Json steps = {replacement_of(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (adds_space) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  Json description = {{"decoder", {{"type", "Sequence"}, {"decoders", steps}}}};
  if (of_llama) {
    const auto* const scheme = !adds_space ? "never" : of_old ? "always" : "first";
    description["pre_tokenizer"] = metaspace(scheme, false);
  } else {
    description["normalizer"] = replacement_of(" ", kSpace);
    description["pre_tokenizer"] = {{"type", "Split"},
                                    {"pattern", {{"String", " "}}},
                                    {"behavior", "MergedWithPrevious"},
                                    {"invert", false}};
  }
  description["model"] = describe_byte_pairs(draft, of_llama ? Json() : unknown);
  return description;
}

/// The template with a token before and behind each text, as far as the file asks for them.
Json describe_surroundings(const Draft& draft, const std::map<std::string, Json>& tokens,
                           bool adds_bos, bool adds_eos) {
  std::vector<std::string> single;
  std::vector<std::pair<std::string, int>> pair;
  for (const int type : {0, 1}) {
    const auto append = [&](const std::string& token) {
      if (type == 0) single.push_back(token);
      pair.emplace_back(token, type);
    };
    if (adds_bos) append(content_of(tokens.at("bos_token"), "bos_token"));
    append(type == 0 ? "A" : "B");
    if (adds_eos) append(content_of(tokens.at("eos_token"), "eos_token"));
  }
  return describe_template(draft, single, pair);
}

Json describe_post_processor(Family family, const Draft& draft,
                             const std::map<std::string, Json>& tokens, JsonFields& config) {
  const bool adds_bos = config.boolean_or("add_bos_token", false);
  const bool adds_eos = config.boolean_or("add_eos_token", false);
  if (family == Family::llama || family == Family::gemma) {
    return describe_surroundings(draft, tokens, adds_bos, adds_eos);
  }
  for (const auto* name : {"add_bos_token", "add_eos_token"}) {
    if (config.find(name) != nullptr)
      refuse(config.place_of(name), *config.find(name), "is not known in this family");
  }
  const auto end = content_of(tokens.at("eos_token"), "eos_token");
  if (family == Family::t5) {
    return describe_template(draft, {"A", end}, {{"A", 0}, {end, 0}, {"B", 0}, {end, 0}});
  }
  const auto begin = content_of(tokens.at("bos_token"), "bos_token");
  return describe_template(draft, {begin, "A", end},
                           {{begin, 0}, {"A", 0}, {end, 0}, {end, 0}, {"B", 0}, {end, 0}});
}

/// The model must be of the family's kind, and have its unknown token where the family has it.
void check_kind(Family family, const SentencePieceModel& model) {
  const bool unigram = family == Family::t5 || family == Family::xlm_roberta;
  if (unigram ? !model.is_unigram : !model.is_byte_pair_encoding) {
    throw std::runtime_error(unigram ? "the model must be a unigram model in this family"
                                     : "the model must be of byte-pair encoding in this family");
  }
  const size_t unknown = family == Family::t5 ? 2 : family == Family::gemma ? 3 : 0;
  if (unknown >= model.pieces.size() || !model.pieces[unknown].is_unknown) {
    throw std::runtime_error("piece " + std::to_string(unknown) +
                             " of the model must be the unknown token in this family");
  }
}

/// tokenizer_config.json, and what special_tokens_map.json adds to one of old.
Json read_config(const std::string& folder) {
  const auto path = folder + "/tokenizer_config.json";
  auto config = exists(path) ? read_json_object(path) : Json::object();
  const auto map = folder + "/special_tokens_map.json";
  if (config.contains("added_tokens_decoder") || !exists(map)) return config;
  const auto tokens = read_json_object(map);
  for (const auto& [name, token] : tokens.items()) {
    if (!config.contains(name) || config[name].is_null()) config[name] = token;
  }
  return config;
}

void expect_known(JsonFields& config) {
  config.pass_over({"auto_map",
                    "backend",
                    "chat_template",
                    "clean_up_tokenization_spaces",
                    "is_local",
                    "legacy",
                    "max_length",
                    "model_input_names",
                    "model_max_length",
                    "name_or_path",
                    "pad_to_multiple_of",
                    "pad_token_type_id",
                    "padding_side",
                    "processor_class",
                    "spaces_between_special_tokens",
                    "special_tokens_map_file",
                    "stride",
                    "tokenizer_file",
                    "truncation_side",
                    "truncation_strategy",
                    "use_default_system_prompt",
                    "use_fast"});
  const auto* options = config.find("sp_model_kwargs");
  if (options != nullptr && !options->empty()) {
    refuse(config.place_of("sp_model_kwargs"), *options, "must be empty");
  }
  config.expect_no_others();
}

}  // namespace

std::string sentence_piece_file(const std::string& folder) {
  for (const auto* name : {"/tokenizer.model", "/spiece.model", "/sentencepiece.bpe.model"}) {
    if (exists(folder + name)) return folder + name;
  }
  return "";
}

Json describe_sentence_pieces(const std::string& path) {
  const auto slash = path.rfind('/');
  const auto folder = slash == std::string::npos ? "." : path.substr(0, slash);
  auto file = open_file(path);
  if (std::filesystem::file_size(path) > kMostBytes) {
    throw std::runtime_error("the file has more than " + std::to_string(kMostBytes) + " bytes");
  }
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto model = read_sentence_piece_model(bytes);
  const auto read = read_config(folder);
  JsonFields config(read, "tokenizer_config.json");
  const auto family = family_of(folder, config);
  check_kind(family, model);
  const auto tokens = read_special_tokens(family, config);
  Draft draft;
  append_pieces(family, model, tokens, config, draft);
  add_tokens(folder, model, tokens, config, draft);
  const bool of_words = family == Family::t5 || family == Family::xlm_roberta;
  const Json unknown = content_of(tokens.at("unk_token"), "unk_token");
  auto description = of_words ? describe_words(family, model, draft, config)
                              : describe_characters(family, draft, unknown, config);
  description["post_processor"] = describe_post_processor(family, draft, tokens, config);
  for (const auto& [id, token] : draft.added) description["added_tokens"].push_back(token);
  expect_known(config);
  return description;
}

}  // namespace heed::examples::text
