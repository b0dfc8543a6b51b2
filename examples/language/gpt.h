// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace heed::examples {

/// The tokens of a GPT are bytes.
constexpr int64_t kBytes = 256;

/// The sizes of a model that train_gpt trains.
struct GptOptions {
  int64_t layers = 4;
  int64_t width = 192;
  int64_t heads = 6;
  int64_t groups = 3;     ///< the number of key/value heads
  int64_t context = 128;  ///< characters that it sees at once in training
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GptOptions, layers, width, heads, groups, context)

/// Throws std::runtime_error when `copies` copies of the parameters do not fit into the machine's
/// memory.
void check_memory(const GptOptions& options, int copies);

/// Throws std::runtime_error when a file is too small for the parameters, before memory is taken
/// for them. One that is missing is no error here.
void check_file(const GptOptions& options, const std::string& path);

/// A decoder in the style of large models: pre-norm with rms_norm, swiglu, rotary embedding, no
/// biases, and a head that shares its weights with the embedding. `dropout` is for training.
Decoder make_gpt(const GptOptions& options, double dropout = 0.0);

/// Writes model.safetensors and model.json into `folder`.
void save_gpt(const Decoder& model, const GptOptions& options, const std::string& folder);

/// Reads the model.json that `save_gpt` wrote. Throws std::runtime_error when it is missing or
/// damaged.
GptOptions read_gpt_options(const std::string& folder);

/// Reads what `save_gpt` wrote. Throws std::runtime_error or c10::ValueError when a file is missing
/// or damaged.
Decoder load_gpt(const GptOptions& options, const std::string& folder);

}  // namespace heed::examples
