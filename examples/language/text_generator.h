// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/decoder.h>
#include <heed/sampling.h>
#include <heed/transformer.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "language_model.h"

namespace heed::examples {

/// Continues a text one token at a time, with a cache of the tokens so far. With an encoder, the
/// text is the target of the prompt.
class TextGenerator {
 public:
  /// Reads the whole prompt at once; an empty prompt is the model's start. `most` tokens will be
  /// asked for, at most. Puts the model into evaluation mode. Throws std::runtime_error when there
  /// is nothing to begin with, and when the prompt does not fit into the context of a model that
  /// does not slide.
  TextGenerator(const LanguageModel& language_model, const std::vector<int64_t>& prompt,
                int64_t most);

  /// Samples with LibTorch's generator. Returns nothing if the text is at its end, or if the
  /// context is full.
  std::optional<int64_t> next(const SamplingOptions& options);

  /// Whether the context is full, after `next` has returned nothing.
  bool is_full() const { return full_; }

 private:
  std::optional<int64_t> forced_token() const;
  void read();
  void forget();

  LanguageModel language_model_;
  TransformerInputs inputs_;     // what the decoder sees of the prompt that an encoder has read
  std::vector<int64_t> text_;    // the whole of it, with the prompt
  int64_t generated_ = 0;        // tokens of it
  int64_t most_ = 0;             // of these
  std::vector<int64_t> window_;  // what the model sees
  std::vector<KVCache> caches_;
  size_t read_ = 0;    // how many tokens of the window the caches hold
  at::Tensor scores_;  // [1, V] of the token after these
  bool ended_ = false, full_ = false;
};

}  // namespace heed::examples
