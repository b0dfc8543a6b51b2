#include "text_generator.h"

#include <c10/core/InferenceMode.h>

#include "text_window.h"

namespace heed::examples {

TextGenerator::TextGenerator(const LanguageModel& language_model, std::string_view prompt)
    : language_model_(language_model),
      caches_(language_model.model->make_caches(1, language_model.options.context)) {
  language_model_.model->eval();
  read(prompt.empty() ? "\n" : prompt);
}

void TextGenerator::read(std::string_view text) {
  std::string_view unread = text;
  if (append_to_window(window_, text, language_model_.options.context)) {
    unread = window_;
    for (auto& cache : caches_) cache.reset();
  }
  const c10::InferenceMode no_gradients;
  const auto& model = *language_model_.model;
  const auto tokens = tokens_of(unread, model.token_embedding->weight.device());
  scores_ = model.forward_cached(tokens, caches_)[0].slice(0, -1);
}

char TextGenerator::next(const SamplingOptions& options) {
  const auto character = static_cast<char>(sample(scores_, options).item<int64_t>());
  read({&character, 1});
  return character;
}

}  // namespace heed::examples
