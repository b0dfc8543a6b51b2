// SPDX-License-Identifier: BSD-3-Clause
#include "generation_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/files.h"
#include "support/json_file.h"

namespace heed::examples {

namespace {

using nlohmann::json;

/// The fields of a file, which may be missing or null.
struct FileFields {
  std::string path;
  json object;

  const json* find(const char* field) const {
    const auto found = object.find(field);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const char* field, const std::string& rule) const {
    throw std::runtime_error(path + ": " + field + " " + object.at(field).dump() + " must be " +
                             rule);
  }

  double number(const char* field, double otherwise, double least, double most,
                const char* rule) const {
    const auto* value = find(field);
    if (value == nullptr) return otherwise;
    const auto good =
        value->is_number() && value->get<double>() >= least && value->get<double>() <= most;
    if (!good) refuse(field, rule);
    return value->get<double>();
  }

  std::optional<int64_t> whole_number(const char* field, int64_t least) const {
    constexpr int64_t kMost = 1'000'000'000'000'000;
    const auto* value = find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer() || *value < least || *value > kMost) {
      refuse(field, fmt::format("a whole number from {} to {}", least, kMost));
    }
    return value->get<int64_t>();
  }

  bool boolean(const char* field) const {
    const auto* value = find(field);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(field, "true or false");
    return value->get<bool>();
  }
};

FileFields read_fields(const std::string& path) { return {path, read_json_object(path)}; }

/// The file that transformers reads the settings of generation from; none if it is missing.
std::string settings_in(const std::string& folder) {
  for (const auto* name : {"/generation_config.json", "/config.json"}) {
    if (exists(folder + name)) return folder + name;
  }
  return "";
}

/// A token or a list of them; none if the field is missing or null.
std::vector<int64_t> tokens_in(const FileFields& fields, const char* field) {
  const auto* value = fields.find(field);
  if (value == nullptr) return {};
  const auto list = value->is_array() ? *value : json::array({*value});
  std::vector<int64_t> tokens;
  for (const auto& token : list) {
    if (!token.is_number_integer()) fields.refuse(field, "a token or a list of tokens");
    tokens.push_back(token);
  }
  return tokens;
}

/// The tokens that bad_words_ids forbids, if each of its words is one; else nothing is followed.
std::optional<std::vector<int64_t>> forbidden_tokens(const json& object) {
  const auto words = object.find("bad_words_ids");
  std::vector<int64_t> tokens;
  if (words == object.end() || words->is_null()) return tokens;
  for (const auto& word : *words) {
    if (!word.is_array() || word.size() != 1 || !word[0].is_number_integer()) return std::nullopt;
    tokens.push_back(word[0]);
  }
  return tokens;
}

/// Scores of -inf for these tokens, but for those that end a text: transformers does not forbid
/// them.
LogitBias forbid(const std::vector<int64_t>& tokens, const std::vector<int64_t>& ends) {
  LogitBias bias;
  for (const auto token : tokens) {
    const bool is_end = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (!is_end) bias[token] = -std::numeric_limits<double>::infinity();
  }
  return bias;
}

EarlyStopping early_stopping_in(const FileFields& fields) {
  const auto* value = fields.find("early_stopping");
  if (value == nullptr || *value == false) return EarlyStopping::estimated;
  if (*value == true) return EarlyStopping::immediate;
  if (*value != "never") fields.refuse("early_stopping", "true, false or \"never\"");
  return EarlyStopping::never;
}

/// Fields that change what transformers generates, each with a value that changes nothing; nor does
/// one that is missing, null, false or empty.
constexpr const char* kLeftOut = R"({
  "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0, "min_length": 0,
  "exponential_decay_length_penalty": 0, "bad_words_ids": 0, "force_words_ids": 0,
  "constraints": 0, "sequence_bias": 0, "suppress_tokens": 0, "begin_suppress_tokens": 0,
  "forced_bos_token_id": -1, "forced_eos_token_id": -1, "forced_decoder_ids": 0, "num_beams": 1,
  "num_beam_groups": 1, "penalty_alpha": 0, "guidance_scale": 1, "dola_layers": 0,
  "watermarking_config": 0, "token_healing": 0, "stop_strings": 0, "max_time": 0
})";
/// The fields of these that are followed for the targets of an encoder-decoder.
constexpr const char* kOfTargets[] = {"forced_bos_token_id", "forced_eos_token_id", "min_length"};
/// These fields change it too where beams are searched.
constexpr const char* kLeftOutOfBeams = R"({"diversity_penalty": 0})";
/// These fields change it too where tokens are sampled, and not the most likely ones taken.
constexpr const char* kLeftOutOfSampling =
    R"({"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": 0})";

bool changes_text(const json& value, double neutral) {
  if (value.is_number()) return value.get<double>() != neutral;
  if (value.is_boolean()) return value.get<bool>();
  return !value.empty();  // as null is
}

/// Names those of `fields` that the object has with other values: "name value", or the name alone
/// of what may be long.
void name_left_out(const json& object, const char* fields, std::vector<std::string>& names) {
  const auto neutral_values = nlohmann::ordered_json::parse(fields);
  for (const auto& [name, neutral] : neutral_values.items()) {
    const auto found = object.find(name);
    if (found == object.end() || !changes_text(*found, neutral)) continue;
    names.push_back(found->is_number() ? name + ' ' + found->dump() : name);
  }
}

}  // namespace

GenerationDefaults read_generation_defaults(const std::string& folder) {
  constexpr auto kLargest = std::numeric_limits<double>::max();
  constexpr auto kLeast = std::numeric_limits<double>::min();
  constexpr auto kShare = "from 0 to 1";
  GenerationDefaults defaults;
  const auto path = settings_in(folder);
  if (path.empty()) return defaults;
  const auto fields = read_fields(path);
  defaults.greedy = !fields.boolean("do_sample");
  defaults.tokens = fields.whole_number("max_new_tokens", 1);
  defaults.beams = fields.whole_number("num_beams", 1).value_or(1);
  defaults.length_penalty = fields.number("length_penalty", 1.0, -kLargest, kLargest, "a number");
  defaults.early_stopping = early_stopping_in(fields);
  defaults.sampling =
      SamplingOptions()
          .temperature(fields.number("temperature", 1.0, 0.0, kLargest, "at least 0"))
          .top_k(fields.whole_number("top_k", 0).value_or(50))
          .top_p(fields.number("top_p", 1.0, 0.0, 1.0, kShare))
          .min_p(fields.number("min_p", 0.0, 0.0, 1.0, kShare))
          .repetition_penalty(fields.number("repetition_penalty", 1.0, kLeast, kLargest, "above 0"))
          .no_repeat_ngram_size(fields.whole_number("no_repeat_ngram_size", 0).value_or(0))
          .min_new_tokens(fields.whole_number("min_new_tokens", 0).value_or(0));
  if (const auto forbidden = forbidden_tokens(fields.object)) {
    defaults.sampling.logit_bias(forbid(*forbidden, special_tokens(folder, "eos_token_id")));
  }
  return defaults;
}

GenerationDefaults read_target_defaults(const std::string& folder) {
  auto defaults = read_generation_defaults(folder);
  const auto path = settings_in(folder);
  if (path.empty()) return defaults;
  const auto fields = read_fields(path);
  const auto longest = fields.whole_number("max_length", 2);
  if (!defaults.tokens && longest) defaults.tokens = *longest - 1;
  if (fields.find("min_new_tokens") == nullptr) {
    const auto shortest = fields.whole_number("min_length", 0).value_or(0);
    defaults.sampling.min_new_tokens(std::max<int64_t>(shortest - 1, 0));
  }
  defaults.first_token = fields.whole_number("forced_bos_token_id", 0);
  const auto last = tokens_in(fields, "forced_eos_token_id");
  if (last.size() > 1) fields.refuse("forced_eos_token_id", "one token");
  if (!last.empty()) defaults.last_token = last[0];
  return defaults;
}

int64_t target_start(const std::string& folder) {
  for (const auto& path : {settings_in(folder), folder + "/config.json"}) {
    if (!exists(path)) continue;
    const auto fields = read_fields(path);
    for (const auto* field : {"decoder_start_token_id", "bos_token_id"}) {
      if (const auto token = fields.whole_number(field, 0)) return *token;
    }
  }
  throw std::runtime_error(folder + "/config.json must have decoder_start_token_id");
}

std::vector<int64_t> special_tokens(const std::string& folder, const std::string& field) {
  for (const auto* name : {"/generation_config.json", "/config.json"}) {
    const auto path = folder + name;
    if (!exists(path)) continue;
    auto tokens = tokens_in(read_fields(path), field.c_str());
    if (!tokens.empty()) return tokens;
  }
  return {};
}

std::string left_out(const std::string& folder, const SamplingOptions& sampling,
                     const Generation& generation) {
  const auto path = settings_in(folder);
  if (path.empty()) return "";
  auto object = read_json_object(path);
  std::vector<std::string> names;
  if (generation.with_beams) object.erase("num_beams");
  if (forbidden_tokens(object)) object.erase("bad_words_ids");
  if (generation.of_target) {
    for (const auto* field : kOfTargets) object.erase(field);
  }
  name_left_out(object, kLeftOut, names);
  if (generation.with_beams) {
    name_left_out(object, kLeftOutOfBeams, names);
  } else if (sampling.temperature() > 0.0) {
    name_left_out(object, kLeftOutOfSampling, names);
  }
  if (names.empty()) return "";
  return fmt::format("{} asks for {}: left out", path, fmt::join(names, ", "));
}

}  // namespace heed::examples
