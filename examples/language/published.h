// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/pretrained.h>

#include <cstdint>
#include <memory>
#include <string>

#include "codec.h"
#include "language_model.h"

namespace heed::examples {

/// Whether the model of the folder is an encoder-decoder, by its config.json if there is one.
/// Throws std::runtime_error when that is not a JSON object.
bool is_encoder_decoder(const std::string& folder);

/// Loads a model in Hugging Face's format, with its tokenizer if there is one. Throws
/// std::runtime_error or c10::ValueError when a file is missing, damaged or not supported, and when
/// the model reads no text.
LanguageModel load_published(const std::string& folder, const PretrainedOptions& options);

/// How many tokens the model of the folder can see at once, by its config.json. Throws
/// std::runtime_error when that does not say so.
int64_t published_context(const std::string& folder);

/// The tokenizer of the folder; empty if there is none.
std::shared_ptr<const Codec> published_codec(const std::string& folder);

/// A number that differs between different weights, of whichever format the folder has them in.
/// Throws std::runtime_error when they cannot be read.
uint64_t fingerprint_of_weights(const std::string& folder);

/// Copies what belongs to the tokenizer and to generation, for a model that was made from this
/// one.
void copy_companions(const std::string& from, const std::string& to);

}  // namespace heed::examples
