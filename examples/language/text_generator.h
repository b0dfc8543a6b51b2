#pragma once

#include <ATen/core/Tensor.h>
#include <heed/decoder.h>
#include <heed/sampling.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "language_model.h"

namespace heed::examples {

/// Continues a text one token at a time, with a cache of the tokens so far.
class TextGenerator {
 public:
  /// Reads the whole prompt at once; an empty prompt is read as a newline. Puts the model into
  /// evaluation mode.
  TextGenerator(const LanguageModel& language_model, std::string_view prompt);

  /// Samples with LibTorch's generator.
  char next(const SamplingOptions& options);

 private:
  void read(std::string_view text);

  LanguageModel language_model_;
  std::vector<KVCache> caches_;
  std::string window_;  // what the caches hold
  at::Tensor scores_;   // [1, V] of the token after it
};

}  // namespace heed::examples
