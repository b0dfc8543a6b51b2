// SPDX-License-Identifier: BSD-3-Clause
#include "batch_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>
#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace heed::examples {

namespace {

int64_t pages_of(int64_t tokens, const BatchOptions& options) {
  return (tokens + options.page_size - 1) / options.page_size;
}

PagedKVCache make_cache(const LanguageModel& language_model, const BatchOptions& options) {
  const auto context = language_model.context;
  const auto longest = options.longest > 0 ? std::min(options.longest, context) : context;
  const auto most = options.at_once * pages_of(longest, options);
  return language_model.model->make_paged_cache(options.pages > 0 ? options.pages : most,
                                                PagedCacheOptions().page_size(options.page_size));
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
  const auto prompt = language_model_.codec->tokens_of(request.prompt, request.raw);
  text.tokens = language_model_.beginning(prompt);
  text.window = language_model_.window_of(text.tokens);
  text.stops = StopStrings(request.stops);
  text.has_prompt = !prompt.empty();
  // The last token of the answer is not read.
  const auto longest = static_cast<int64_t>(text.window.size()) + request.tokens - 1;
  const auto needed = pages_of(std::min(longest, language_model_.context), options_);
  const auto pages = cache_.options().pages();
  if (needed > pages) {
    throw std::runtime_error(fmt::format("it needs {} pages of {} tokens, and there are {}", needed,
                                         options_.page_size, pages));
  }
  text.request = std::move(request);
  waiting_.push_back(std::move(text));
  ++added_;
}

BatchGenerator::Unread BatchGenerator::unread() const {
  Unread all;
  for (const auto& text : running_) {
    const auto read = static_cast<size_t>(cache_.length(text.sequence));
    all.sequences.push_back(text.sequence);
    all.counts.push_back(static_cast<int64_t>(text.window.size() - read));
    all.tokens.insert(all.tokens.end(), text.window.begin() + static_cast<ptrdiff_t>(read),
                      text.window.end());
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

/// Texts that wait have none of this: a generator takes as much memory as a long prompt.
void BatchGenerator::begin(Text& text) const {
  text.generator = at::make_generator<at::CPUGeneratorImpl>(text.request.seed);
  text.speller = language_model_.codec->speller();
  if (!text.has_prompt) return;
  for (const auto token : text.window) text.speller->push(token);
}

void BatchGenerator::admit() {
  while (!waiting_.empty() && running_.size() < static_cast<size_t>(options_.at_once)) {
    auto& first = waiting_.front();
    // One page more for each that runs: else it would often give its pages back after a few steps.
    const auto spare = static_cast<int64_t>(running_.size());
    const auto own = pages_of(static_cast<int64_t>(first.window.size()), options_);
    if (spare > 0 && pages_needed() + own + spare > cache_.pages_free()) return;
    first.sequence = cache_.add();
    if (!first.speller) begin(first);
    running_.push_back(std::move(first));
    waiting_.pop_front();
  }
}

/// Samples by each text's options and with its generator.
at::Tensor BatchGenerator::sample_next(const at::Tensor& scores) {
  std::vector<SamplingOptions> options;
  std::vector<at::Generator> generators;
  std::vector<TokenHistory> histories;
  for (const auto& text : running_) {
    options.push_back(text.request.sampling);
    generators.push_back(text.generator);
    histories.push_back({text.tokens, text.generated});
  }
  return sample(scores, options, generators, histories).cpu();
}

/// The text that a token adds to the answer, which ends before a stop.
std::string BatchGenerator::spell(Text& text, int64_t token, bool& last) const {
  const auto& request = text.request;
  std::string piece;
  if (language_model_.is_end(token)) {
    last = true;
  } else {
    piece = text.speller->push(token);
    last = ++text.generated >= request.tokens || language_model_.is_full(text.window);
  }
  if (last) piece += text.speller->finish();
  auto shown = text.stops.push(piece);
  if (last) shown += text.stops.finish();
  last = last || text.stops.found();
  return shown;
}

GeneratedToken BatchGenerator::take(Text& text, int64_t token) {
  GeneratedToken generated{text.number, "", false};
  generated.text = spell(text, token, generated.last);
  if (generated.last) {
    cache_.remove(text.sequence);
    return generated;
  }
  text.tokens.push_back(token);
  const bool moved = language_model_.append({token}, text.window);
  const auto length = static_cast<int64_t>(text.window.size());
  if (moved || language_model_.must_read_again(cache_.length(text.sequence), length)) {
    cache_.truncate(text.sequence, 0);
  }
  return generated;
}

std::vector<GeneratedToken> BatchGenerator::step() {
  make_room();
  admit();
  const auto all = unread();
  const c10::InferenceMode no_gradients;
  auto step = cache_.append(all.sequences, all.counts);
  const auto tokens = language_model_.to_tensor(all.tokens);
  const auto& model = language_model_.model;
  const auto scores = model->forward_cached(tokens, step, /*last_only=*/true)[0];  // [N, V]
  const auto sampled = sample_next(scores);
  std::vector<GeneratedToken> generated;
  std::vector<Text> unfinished;
  for (size_t n = 0; n < running_.size(); ++n) {
    auto& text = running_[n];
    generated.push_back(take(text, sampled.const_data_ptr<int64_t>()[n]));
    if (!generated.back().last) unfinished.push_back(std::move(text));
  }
  running_ = std::move(unfinished);
  return generated;
}

}  // namespace heed::examples
