#include "published.h"

#include <heed/pretrained.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "support/atomic_write.h"
#include "support/input_file.h"
#include "support/json_file.h"

namespace heed::examples {

namespace {

using nlohmann::json;

constexpr std::array kCompanions = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "vocab.txt",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "generation_config.json"};

std::string read_whole(const std::string& path) {
  auto file = open_file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

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

/// A field that changes what transformers generates, unless it has this value, is missing, null,
/// false or empty.
struct GenerationField {
  const char* name;
  double neutral = 0;
};

constexpr std::array<GenerationField, 25> kLeftOut = {{
    {"repetition_penalty", 1},
    {"encoder_repetition_penalty", 1},
    {"no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size"},
    {"min_length"},
    {"min_new_tokens"},
    {"exponential_decay_length_penalty"},
    {"bad_words_ids"},
    {"force_words_ids"},
    {"constraints"},
    {"sequence_bias"},
    {"suppress_tokens"},
    {"begin_suppress_tokens"},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"forced_decoder_ids"},
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"penalty_alpha"},
    {"guidance_scale", 1},
    {"dola_layers"},
    {"watermarking_config"},
    {"token_healing"},
    {"stop_strings"},
    {"max_time"},
}};

/// These fields change it too where tokens are sampled, and not the most likely ones taken.
constexpr std::array<GenerationField, 4> kLeftOutOfSampling = {
    {{"typical_p", 1}, {"epsilon_cutoff"}, {"eta_cutoff"}, {"top_h"}}};

bool changes_text(const json& value, double neutral) {
  if (value.is_number()) return value.get<double>() != neutral;
  if (value.is_boolean()) return value.get<bool>();
  return !value.empty();  // as null is
}

/// "name value", or the name alone of what may be long.
std::string asked(const std::string& name, const json& value) {
  return value.is_number() ? name + ' ' + value.dump() : name;
}

void name_left_out(const json& object, const GenerationField& field,
                   std::vector<std::string>& names) {
  const auto found = object.find(field.name);
  if (found == object.end() || !changes_text(*found, field.neutral)) return;
  names.push_back(asked(field.name, *found));
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

/// What generation_config.json says, or else config.json.
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

LanguageModel load_published(const std::string& folder, std::optional<at::ScalarType> dtype) {
  LanguageModel language_model;
  language_model.model = load_pretrained(folder, PretrainedOptions().dtype(dtype));
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
  for (const auto& field : kLeftOut) name_left_out(object, field, names);
  const auto samples = object.find("do_sample");
  if (samples != object.end() && *samples == true && sampling.temperature() > 0.0) {
    for (const auto& field : kLeftOutOfSampling) name_left_out(object, field, names);
    name_other_sampling(object, sampling, names);
  }
  if (names.empty()) return "";
  auto text = path + " asks for ";
  for (const auto& name : names) text += name + (&name == &names.back() ? ": left out" : ", ");
  return text;
}

void copy_companions(const std::string& from, const std::string& to) {
  for (const auto* name : kCompanions) {
    const auto path = from + "/" + name;
    if (exists(path)) write_atomically(to + "/" + name, read_whole(path));
  }
}

}  // namespace heed::examples
