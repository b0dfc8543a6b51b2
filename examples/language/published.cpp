#include "published.h"

#include <fmt/ranges.h>
#include <heed/pretrained.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "support/files.h"
#include "support/json_file.h"

namespace heed::examples {

namespace {

using nlohmann::json;

json read_object(const std::string& path) {
  auto file = open_file(path);
  try {
    auto object = read_json(file);
    if (!object.is_object()) throw std::runtime_error("the file must be a JSON object");
    return object;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
}

/// A token or a list of them; none if the field is missing or null.
std::vector<int64_t> tokens_in(const json& object, const std::string& field,
                               const std::string& path) {
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) return {};
  const auto list = found->is_array() ? *found : json::array({*found});
  std::vector<int64_t> tokens;
  for (const auto& token : list) {
    if (!token.is_number_integer()) {
      throw std::runtime_error(path + ": " + field + " " + found->dump() +
                               " must be a token or a list of tokens");
    }
    tokens.push_back(token);
  }
  return tokens;
}

/// Fields that change what transformers generates, each with a value that changes nothing; nor does
/// one that is missing, null, false or empty.
constexpr const char* kLeftOut = R"({
  "repetition_penalty": 1, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0,
  "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0,
  "exponential_decay_length_penalty": 0, "bad_words_ids": 0, "force_words_ids": 0,
  "constraints": 0, "sequence_bias": 0, "suppress_tokens": 0, "begin_suppress_tokens": 0,
  "forced_bos_token_id": -1, "forced_eos_token_id": -1, "forced_decoder_ids": 0, "num_beams": 1,
  "num_beam_groups": 1, "penalty_alpha": 0, "guidance_scale": 1, "dola_layers": 0,
  "watermarking_config": 0, "token_healing": 0, "stop_strings": 0, "max_time": 0
})";
/// These fields change it too where tokens are sampled, and not the most likely ones taken.
constexpr const char* kLeftOutOfSampling =
    R"({"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": 0})";

bool changes_text(const json& value, double neutral) {
  if (value.is_number()) return value.get<double>() != neutral;
  if (value.is_boolean()) return value.get<bool>();
  return !value.empty();  // as null is
}

/// "name value", or the name alone of what may be long.
std::string asked(const std::string& name, const json& value) {
  return value.is_number() ? name + ' ' + value.dump() : name;
}

/// Names those of `fields` that the object has with other values.
void name_left_out(const json& object, const char* fields, std::vector<std::string>& names) {
  const auto neutral_values = nlohmann::ordered_json::parse(fields);
  for (const auto& [name, neutral] : neutral_values.items()) {
    const auto found = object.find(name);
    if (found == object.end() || !changes_text(*found, neutral)) continue;
    names.push_back(asked(name, *found));
  }
}

/// Names the fields of sampling that differ from the program's options.
void name_other_sampling(const json& object, const SamplingOptions& sampling,
                         std::vector<std::string>& names) {
  const auto compare = [&](const char* name, const char* option, double neutral, double used) {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_number() || !changes_text(*found, neutral)) return;
    if (found->get<double>() == used) return;
    names.push_back(asked(name, *found) + " (see " + option + ")");
  };
  compare("temperature", "--temperature", 1, sampling.temperature());
  compare("top_k", "--top-k", 0, static_cast<double>(sampling.top_k()));
  compare("top_p", "--top-p", 1, sampling.top_p());
  compare("min_p", "--min-p", 0, sampling.min_p());
}

/// The tokens that a field of generation_config.json names, or else that of config.json.
std::vector<int64_t> special_tokens(const std::string& folder, const std::string& field) {
  for (const auto* name : {"/generation_config.json", "/config.json"}) {
    const auto path = folder + name;
    if (!exists(path)) continue;
    auto tokens = tokens_in(read_object(path), field, path);
    if (!tokens.empty()) return tokens;
  }
  return {};
}

}  // namespace

int64_t published_context(const std::string& folder) {
  const auto path = folder + "/config.json";
  const auto config = read_object(path);
  for (const auto* field : {"max_position_embeddings", "n_positions"}) {
    const auto found = config.find(field);
    if (found == config.end()) continue;
    if (!found->is_number_integer() || *found < 1) {
      throw std::runtime_error(path + ": " + field + " " + found->dump() +
                               " must be a whole number from 1");
    }
    return *found;
  }
  throw std::runtime_error(path + " must have max_position_embeddings");
}

std::shared_ptr<const Codec> published_codec(const std::string& folder) {
  const auto path = folder + "/tokenizer.json";
  return exists(path) ? tokenizer_codec(path) : nullptr;
}

LanguageModel load_published(const std::string& folder, const PretrainedOptions& options) {
  LanguageModel language_model;
  language_model.model = load_pretrained(folder, PretrainedOptions(options).head(true));
  language_model.context = published_context(folder);
  language_model.codec = published_codec(folder);
  language_model.start = special_tokens(folder, "bos_token_id");
  language_model.ends = special_tokens(folder, "eos_token_id");
  return language_model;
}

std::string left_out(const std::string& folder, const SamplingOptions& sampling) {
  auto path = folder + "/generation_config.json";
  if (!exists(path)) path = folder + "/config.json";
  if (!exists(path)) return "";
  const auto object = read_object(path);
  std::vector<std::string> names;
  name_left_out(object, kLeftOut, names);
  const auto samples = object.find("do_sample");
  if (samples != object.end() && *samples == true && sampling.temperature() > 0.0) {
    name_left_out(object, kLeftOutOfSampling, names);
    name_other_sampling(object, sampling, names);
  }
  if (names.empty()) return "";
  return fmt::format("{} asks for {}: left out", path, fmt::join(names, ", "));
}

void copy_companions(const std::string& from, const std::string& to) {
  for (const auto* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
                           "tokenizer.model", "chat_template.jinja", "generation_config.json"}) {
    const auto path = from + "/" + name;
    if (!exists(path)) continue;
    auto file = open_file(path);
    write_atomically(to + "/" + name, std::string(std::istreambuf_iterator<char>(file), {}));
  }
}

}  // namespace heed::examples
