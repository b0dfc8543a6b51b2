#include "batch_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>
#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "text_window.h"

namespace heed::examples {

namespace {

int64_t pages_of(int64_t tokens, const BatchOptions& options) {
  return (tokens + options.page_size - 1) / options.page_size;
}

PagedKVCache make_cache(const LanguageModel& language_model, const BatchOptions& options) {
  const auto most = options.at_once * pages_of(language_model.options.context, options);
  return language_model.model->make_paged_cache(options.pages > 0 ? options.pages : most,
                                                PagedCacheOptions().page_size(options.page_size));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

BatchGenerator::BatchGenerator(const LanguageModel& language_model, const BatchOptions& options)
    : language_model_(language_model),
      options_(options),
      cache_(make_cache(language_model, options)) {
  language_model_.model->eval();
}

void BatchGenerator::add(GenerationRequest request) {
  Text text;
  text.number = added_;
  text.generator = at::make_generator<at::CPUGeneratorImpl>(request.seed);
  const auto context = language_model_.options.context;
  append_to_window(text.window, request.prompt.empty() ? "\n" : request.prompt, context);
  // The last token of the answer is not read.
  const auto longest = static_cast<int64_t>(text.window.size()) + request.tokens - 1;
  const auto needed = pages_of(std::min(longest, context), options_);
  const auto pages = cache_.options().pages();
  if (needed > pages) {
    throw std::runtime_error(fmt::format("prompt {} needs {} pages of {} tokens, and there are {}",
                                         added_ + 1, needed, options_.page_size, pages));
  }
  text.request = std::move(request);
  waiting_.push_back(std::move(text));
  ++added_;
}

BatchGenerator::Unread BatchGenerator::unread() const {
  Unread all;
  all.sequences.reserve(running_.size());
  all.counts.reserve(running_.size());
  for (const auto& text : running_) {
    const auto read = static_cast<size_t>(cache_.length(text.sequence));
    all.sequences.push_back(text.sequence);
    all.counts.push_back(static_cast<int64_t>(text.window.size() - read));
    all.text += std::string_view(text.window).substr(read);
  }
  return all;
}

int64_t BatchGenerator::pages_needed() const {
  const auto all = unread();
  return cache_.pages_needed(all.sequences, all.counts);
}

/// One text alone always has room: `add` has seen to it.
void BatchGenerator::make_room() {
  while (pages_needed() > cache_.pages_free()) {
    auto& newest = running_.back();
    cache_.remove(newest.sequence);
    waiting_.push_front(std::move(newest));
    running_.pop_back();
    ++preemptions_;
  }
}

void BatchGenerator::admit() {
  while (!waiting_.empty() && running_.size() < static_cast<size_t>(options_.at_once)) {
    auto& first = waiting_.front();
    // One page more for each that runs: else it would often give its pages back after a few steps.
    const auto spare = static_cast<int64_t>(running_.size());
    const auto own = pages_of(static_cast<int64_t>(first.window.size()), options_);
    if (spare > 0 && pages_needed() + own + spare > cache_.pages_free()) return;
    first.sequence = cache_.add();
    running_.push_back(std::move(first));
    waiting_.pop_front();
  }
}

/// Samples by each text's options and with its generator.
at::Tensor BatchGenerator::sample_next(const at::Tensor& scores) {
  std::vector<SamplingOptions> options;
  std::vector<at::Generator> generators;
  options.reserve(running_.size());
  generators.reserve(running_.size());
  for (const auto& text : running_) {
    options.push_back(text.request.sampling);
    generators.push_back(text.generator);
  }
  return sample(scores, options, generators).cpu();
}

/// Returns whether the answer is whole.
bool BatchGenerator::take(Text& text, char character) {
  text.answer += character;
  const auto& request = text.request;
  const bool stops = !request.stop.empty() && ends_with(text.answer, request.stop);
  if (stops || static_cast<int64_t>(text.answer.size()) >= request.tokens) {
    cache_.remove(text.sequence);
    return true;
  }
  if (append_to_window(text.window, {&character, 1}, language_model_.options.context)) {
    cache_.truncate(text.sequence, 0);
  }
  return false;
}

std::vector<GeneratedToken> BatchGenerator::step() {
  make_room();
  admit();
  const auto& model = *language_model_.model;
  const auto all = unread();
  const c10::InferenceMode no_gradients;
  auto step = cache_.append(all.sequences, all.counts);
  const auto tokens = tokens_of(all.text, model.token_embedding->weight.device());
  const auto scores = model.forward_cached(tokens, step, /*last_only=*/true)[0];  // [N, V]
  const auto sampled = sample_next(scores);
  std::vector<GeneratedToken> generated;
  std::vector<Text> unfinished;
  generated.reserve(running_.size());
  unfinished.reserve(running_.size());
  for (size_t n = 0; n < running_.size(); ++n) {
    auto& text = running_[n];
    const auto character = static_cast<char>(sampled.data_ptr<int64_t>()[n]);
    const bool last = take(text, character);
    generated.push_back({text.number, character, last});
    if (!last) unfinished.push_back(std::move(text));
  }
  running_ = std::move(unfinished);
  return generated;
}

}  // namespace heed::examples
