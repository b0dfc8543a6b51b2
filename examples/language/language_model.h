#pragma once

#include <c10/core/ScalarType.h>
#include <heed/decoder.h>
#include <heed/pretrained.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec.h"
#include "generation_config.h"

namespace heed::examples {

/// A decoder, and what a program must know to write text with it.
struct LanguageModel {
  Decoder model{nullptr};
  int64_t context = 0;  ///< tokens that it sees at once, at most
  /// Whether a text may be longer than the context: the model then sees its end.
  bool slides = false;
  std::shared_ptr<const Codec> codec;  ///< empty if the folder has no tokenizer
  std::vector<int64_t> start;          ///< read in place of an empty prompt
  std::vector<int64_t> ends;           ///< tokens that end a text
  GenerationDefaults defaults;

  /// The tokens that a text begins with: those of the prompt, or the start if there are none.
  const std::vector<int64_t>& beginning(const std::vector<int64_t>& prompt) const {
    return prompt.empty() ? start : prompt;
  }
  /// The tokens of a prompt that the model sees. Throws std::runtime_error when there is nothing to
  /// begin with, when the prompt is too long, and when the model has no such token.
  std::vector<int64_t> window_of(const std::vector<int64_t>& prompt) const;
  /// Appends `tokens` to `window`, the part of a text that the model sees. If the context has no
  /// room left, only the last half of it stays, which leaves room for as many new tokens. Returns
  /// whether that happened: then the model must read the window again.
  bool append(const std::vector<int64_t>& tokens, std::vector<int64_t>& window) const;
  /// int64 [1, L], on the model's device.
  at::Tensor to_tensor(const std::vector<int64_t>& tokens) const;

  bool is_end(int64_t token) const;
  /// Whether a token that follows the window can no longer be read.
  bool is_full(const std::vector<int64_t>& window) const;
  /// Whether a text of which `read` tokens are cached must be read again now that it has `length`:
  /// with longrope, all its keys have other frequencies beyond the length trained for.
  bool must_read_again(int64_t read, int64_t length) const;
};

/// Loads a model of train_gpt (model.json), or a published one in Hugging Face's format
/// (config.json), with the dtype and the weights of the options. The adapter of a published model,
/// if its folder is given, becomes part of the weights, or stays beside packed ones. Throws
/// std::runtime_error or c10::ValueError when a file is missing, damaged or not supported.
LanguageModel load_language_model(const std::string& folder, const PretrainedOptions& options = {},
                                  const std::string& adapter = "");

}  // namespace heed::examples
