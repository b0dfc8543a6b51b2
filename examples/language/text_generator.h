#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "language_model.h"
#include "sampling.h"

namespace heed::examples {

/// Continues a text one token at a time, with a cache of the tokens so far.
class TextGenerator {
 public:
  /// Reads the whole prompt at once; an empty prompt is read as a newline. Puts the model into
  /// evaluation mode.
  TextGenerator(const LanguageModel& language_model, std::string_view prompt);

  char next(const SamplingOptions& options);

 private:
  void read(std::string_view text);

  LanguageModel language_model_;
  std::vector<KVCache> caches_;
  std::string text_;   // what the caches hold
  at::Tensor scores_;  // [V] of the token after it
};

}  // namespace heed::examples
