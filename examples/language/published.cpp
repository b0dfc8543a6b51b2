// SPDX-License-Identifier: BSD-3-Clause
#include "published.h"

#include <heed/pretrained.h>

#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "generation_config.h"
#include "support/files.h"
#include "support/fingerprint.h"
#include "support/json_file.h"
#include "text/tokenizer.h"

namespace heed::examples {

int64_t published_context(const std::string& folder) {
  const auto path = folder + "/config.json";
  auto config = read_json_object(path);
  // A model that also sees images has the fields of its text model in an object.
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    config = nlohmann::json(*text);
  }
  for (const auto* field : {"max_position_embeddings", "n_positions"}) {
    const auto found = config.find(field);
    if (found == config.end()) continue;
    if (!found->is_number_integer() || *found < 1) {
      throw std::runtime_error(path + ": " + field + " " + found->dump() +
                               " must be a whole number from 1");
    }
    return *found;
  }
  // Folders of Gemma 3 leave out what transformers takes for it.
  if (config.value("model_type", nlohmann::json()) == "gemma3_text") return 131'072;
  throw std::runtime_error(path + " must have max_position_embeddings");
}

std::shared_ptr<const Codec> published_codec(const std::string& folder) {
  const auto path = Tokenizer::file_in(folder);
  return path.empty() ? nullptr : tokenizer_codec(path);
}

bool is_encoder_decoder(const std::string& folder) {
  const auto path = folder + "/config.json";
  if (!exists(path)) return false;
  const auto config = read_json_object(path);
  const auto found = config.find("is_encoder_decoder");
  return found != config.end() && *found == true;
}

namespace {

LanguageModel load_decoder(const std::string& folder, const PretrainedOptions& options) {
  LanguageModel language_model;
  language_model.model = load_pretrained(folder, PretrainedOptions(options).head(true));
  language_model.context = published_context(folder);
  language_model.defaults = read_generation_defaults(folder);
  return language_model;
}

LanguageModel load_encoder_decoder(const std::string& folder, const PretrainedOptions& options) {
  LanguageModel language_model;
  const auto model = load_pretrained<EncoderDecoder>(folder, options);
  if (model->encoder.is_empty()) {
    throw std::runtime_error(folder + " makes text of speech, and a prompt is text");
  }
  language_model.encoder_decoder = model;
  language_model.model = model->decoder;
  // T5's positions are distances, of any size.
  language_model.context = model->decoder->options.positions()
                               ? published_context(folder)
                               : std::numeric_limits<int64_t>::max();
  language_model.defaults = read_target_defaults(folder);
  language_model.target_start = target_start(folder);
  return language_model;
}

}  // namespace

LanguageModel load_published(const std::string& folder, const PretrainedOptions& options) {
  auto language_model = is_encoder_decoder(folder) ? load_encoder_decoder(folder, options)
                                                   : load_decoder(folder, options);
  language_model.codec = published_codec(folder);
  language_model.start = special_tokens(folder, "bos_token_id");
  language_model.ends = special_tokens(folder, "eos_token_id");
  return language_model;
}

uint64_t fingerprint_of_weights(const std::string& folder) {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto end = entry.path().extension();
    if (end == ".safetensors" || end == ".bin") paths.insert(entry.path());
  }
  auto whole = fingerprint("");
  std::string part(size_t{1} << 20, '\0');
  for (const auto& path : paths) {
    auto file = open_file(path);
    while (file.read(part.data(), static_cast<std::streamsize>(part.size())), file.gcount() > 0) {
      whole = fingerprint({part.data(), static_cast<size_t>(file.gcount())}, whole);
    }
  }
  return whole;
}

void copy_companions(const std::string& from, const std::string& to) {
  for (const auto* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
        "sentencepiece.bpe.model", "chat_template.jinja", "generation_config.json"}) {
    const auto path = from + "/" + name;
    if (!exists(path)) continue;
    auto file = open_file(path);
    write_atomically(to + "/" + name, std::string(std::istreambuf_iterator<char>(file), {}));
  }
}

}  // namespace heed::examples
