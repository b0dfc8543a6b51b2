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

void copy_companions(const std::string& from, const std::string& to) {
  for (const auto* name : kCompanions) {
    const auto path = from + "/" + name;
    if (exists(path)) write_atomically(to + "/" + name, read_whole(path));
  }
}

}  // namespace heed::examples
