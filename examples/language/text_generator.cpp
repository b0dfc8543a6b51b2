// SPDX-License-Identifier: BSD-3-Clause
#include "text_generator.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace heed::examples {

TextGenerator::TextGenerator(const LanguageModel& language_model,
                             const std::vector<int64_t>& prompt, int64_t most)
    : language_model_(language_model),
      text_(language_model.text_before(prompt)),
      window_(language_model.window_of(prompt)) {
  language_model_.whole().eval();
  if (language_model_.has_encoder()) {
    const c10::InferenceMode no_gradients;
    inputs_ = language_model_.inputs_of(window_);
    window_ = text_;
  }
  most_ = std::min(most, language_model_.room_after(window_));
  const auto longest = static_cast<int64_t>(window_.size()) + most;
  caches_ = language_model_.model->make_caches(1, std::min(longest, language_model_.context));
  read();
}

/// The next token if the model's settings force one, as they may the first and the last.
std::optional<int64_t> TextGenerator::forced_token() const {
  const auto& defaults = language_model_.defaults;
  if (defaults.last_token && generated_ == most_ - 1) return defaults.last_token;
  return generated_ == 0 ? defaults.first_token : std::nullopt;
}

void TextGenerator::forget() {
  for (auto& cache : caches_) cache.reset();
  read_ = 0;
}

void TextGenerator::read() {
  if (read_ == window_.size()) return;
  const auto length = static_cast<int64_t>(window_.size());
  if (language_model_.must_read_again(static_cast<int64_t>(read_), length)) forget();
  const std::vector<int64_t> unread(window_.begin() + static_cast<ptrdiff_t>(read_), window_.end());
  const c10::InferenceMode no_gradients;
  const auto tokens = language_model_.to_tensor(unread);
  const auto& model = language_model_.model;
  scores_ = model->forward_cached(tokens, caches_, {}, /*last_only=*/true, inputs_)[0];
  read_ = window_.size();
}

std::optional<int64_t> TextGenerator::next(const SamplingOptions& options) {
  if (ended_ || full_) return std::nullopt;
  read();
  const TokenHistory history{text_, generated_};
  const auto forced = forced_token();
  const auto token = forced ? *forced : sample(scores_, options, {}, history).item<int64_t>();
  ended_ = language_model_.is_end(token);
  if (ended_) return std::nullopt;
  text_.push_back(token);
  ++generated_;
  full_ = language_model_.is_full(window_);
  if (!full_ && language_model_.append({token}, window_)) forget();
  return token;
}

}  // namespace heed::examples
