#pragma once

#include <heed/decoder.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace heed::examples {

/// The tokens of the language models here are bytes.
constexpr int64_t kBytes = 256;

struct LanguageModelOptions {
  int64_t layers = 4;
  int64_t width = 192;
  int64_t heads = 6;
  int64_t groups = 3;     ///< of heads, each of which shares a key and a value
  int64_t context = 128;  ///< the characters it is trained to look back on
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LanguageModelOptions, layers, width, heads, groups, context)

/// Throws std::runtime_error when so many copies of the parameters, at the least, do not fit into
/// the machine's memory.
void check_memory(const LanguageModelOptions& options, int copies);

/// A decoder as large models have it: pre-norm by rms_norm, swiglu, rotary embedding, no biases,
/// and scores by the embeddings. `dropout` is for training.
Decoder make_language_model(const LanguageModelOptions& options, double dropout = 0.0);

struct LanguageModel {
  LanguageModelOptions options;
  Decoder model{nullptr};
};

/// Writes model.safetensors and model.json into `folder`.
void save_language_model(const LanguageModel& language_model, const std::string& folder);

/// Reads them. Throws std::runtime_error or c10::ValueError when they are missing or damaged.
LanguageModel load_language_model(const std::string& folder);

}  // namespace heed::examples
