#include "text_generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

namespace heed::examples {

TextGenerator::TextGenerator(const LanguageModel& language_model, std::string_view prompt)
    : language_model_(language_model),
      caches_(language_model.model->make_caches(1, language_model.options.context)) {
  language_model_.model->eval();
  read(prompt.empty() ? "\n" : prompt);
}

/// Appends `text`. If the context has no room left, its last half is read again, which leaves room
/// for as many new tokens.
void TextGenerator::read(std::string_view text) {
  text_ += text;
  const auto context = static_cast<size_t>(language_model_.options.context);
  if (text_.size() > context) {
    text_.erase(0, text_.size() - (context + 1) / 2);
    text = text_;
    for (auto& cache : caches_) cache.reset();
  }
  const at::NoGradGuard no_grad;
  const auto& model = *language_model_.model;
  auto bytes = std::string(text);
  const auto tokens =
      at::from_blob(bytes.data(), {1, static_cast<int64_t>(bytes.size())}, at::kByte)
          .to(model.token_embedding->weight.device(), at::kLong);
  scores_ = model.forward_cached(tokens, caches_)[0][-1];
}

char TextGenerator::next(const SamplingOptions& options) {
  const auto character = static_cast<char>(sample(scores_, options));
  read({&character, 1});
  return character;
}

}  // namespace heed::examples
