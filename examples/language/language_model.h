// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/ScalarType.h>
#include <heed/decoder.h>
#include <heed/encoder_decoder.h>
#include <heed/pretrained.h>
#include <heed/transformer.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec.h"
#include "generation_config.h"

namespace heed::examples {

/// A decoder, and what a program must know to write text with it. It may be that of an
/// encoder-decoder, whose encoder reads the prompt: then it writes a text of its own, the target.
struct LanguageModel {
  Decoder model{nullptr};
  EncoderDecoder encoder_decoder{nullptr};  ///< with `model`; empty if that reads the prompt
  int64_t target_start = 0;                 ///< the token that each target begins with
  int64_t context = 0;                      ///< tokens that it sees at once, at most
  /// Whether a text may be longer than the context: the model then sees its end.
  bool slides = false;
  std::shared_ptr<const Codec> codec;  ///< empty if the folder has no tokenizer
  std::vector<int64_t> start;          ///< read in place of an empty prompt
  std::vector<int64_t> ends;           ///< tokens that end a text
  GenerationDefaults defaults;

  bool has_encoder() const { return !encoder_decoder.is_empty(); }
  /// The decoder, with the encoder if there is one.
  torch::nn::Module& whole() const;
  /// How many different tokens a prompt may have.
  int64_t vocabulary() const;

  /// The tokens that a text begins with: those of the prompt, or the start if there are none.
  const std::vector<int64_t>& beginning(const std::vector<int64_t>& prompt) const {
    return prompt.empty() ? start : prompt;
  }
  /// The tokens that the generated ones follow: those of the prompt, or the start of a target.
  std::vector<int64_t> text_before(const std::vector<int64_t>& prompt) const {
    return has_encoder() ? std::vector<int64_t>{target_start} : beginning(prompt);
  }
  /// The tokens of a prompt that the model, or its encoder, sees. Throws std::runtime_error when
  /// there is nothing to begin with, when the prompt is too long, and when the model has no such
  /// token.
  std::vector<int64_t> window_of(const std::vector<int64_t>& prompt) const;
  /// Appends `tokens` to `window`, the part of a text that the model sees. If the context has no
  /// room left, only the last half of it stays, which leaves room for as many new tokens. Returns
  /// whether that happened: then the model must read the window again.
  bool append(const std::vector<int64_t>& tokens, std::vector<int64_t>& window) const;
  /// The inputs of `model` for the tokens that the encoder reads.
  TransformerInputs inputs_of(const std::vector<int64_t>& source) const;
  /// int64 [1, L], on the model's device.
  at::Tensor to_tensor(const std::vector<int64_t>& tokens) const;

  bool is_end(int64_t token) const;
  /// How many tokens can follow the window where it stands; the last of them is not read.
  int64_t room_after(const std::vector<int64_t>& window) const;
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
