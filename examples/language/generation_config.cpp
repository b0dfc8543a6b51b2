#include "generation_config.h"

#include <fmt/ranges.h>

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
/// These fields change it too where beams are searched. Their number is the command line's.
constexpr const char* kLeftOutOfBeams =
    R"({"length_penalty": 1, "early_stopping": 0, "diversity_penalty": 0})";
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
  defaults.sampling =
      SamplingOptions()
          .temperature(fields.number("temperature", 1.0, 0.0, kLargest, "at least 0"))
          .top_k(fields.whole_number("top_k", 0).value_or(50))
          .top_p(fields.number("top_p", 1.0, 0.0, 1.0, kShare))
          .min_p(fields.number("min_p", 0.0, 0.0, 1.0, kShare))
          .repetition_penalty(fields.number("repetition_penalty", 1.0, kLeast, kLargest, "above 0"))
          .no_repeat_ngram_size(fields.whole_number("no_repeat_ngram_size", 0).value_or(0))
          .min_new_tokens(fields.whole_number("min_new_tokens", 0).value_or(0));
  return defaults;
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

std::string left_out(const std::string& folder, const SamplingOptions& sampling, bool with_beams) {
  const auto path = settings_in(folder);
  if (path.empty()) return "";
  auto object = read_json_object(path);
  std::vector<std::string> names;
  if (with_beams) object.erase("num_beams");
  name_left_out(object, kLeftOut, names);
  if (with_beams) {
    name_left_out(object, kLeftOutOfBeams, names);
  } else if (sampling.temperature() > 0.0) {
    name_left_out(object, kLeftOutOfSampling, names);
  }
  if (names.empty()) return "";
  return fmt::format("{} asks for {}: left out", path, fmt::join(names, ", "));
}

}  // namespace heed::examples
