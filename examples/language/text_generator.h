#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "language_model.h"
#include "sampling.h"

namespace heed::examples {

/// Writes text on, one token at a time, each computed from the cache of those before it.
class TextGenerator {
 public:
  /// Reads the prompt in one go; a newline where it is empty. The model is put into evaluation
  /// mode.
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
