// SPDX-License-Identifier: BSD-3-Clause
#include <heed/beam_search.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/ceil_div.h"
#include "core/checks.h"
#include "core/to_device.h"
#include "models/beams.h"
#include "models/penalties.h"
#include "modules/count.h"
#include "modules/layers/embedding.h"

namespace heed {

namespace {

constexpr auto kBeamSearch = "beam_search";

using Prompts = at::ArrayRef<std::vector<int64_t>>;

/// The penalties with those of the search's options that belong to them.
SamplingOptions penalties_of(const BeamSearchOptions& options) {
  return SamplingOptions(options.penalties())
      .end_tokens(options.end_tokens())
      .min_new_tokens(options.min_new_tokens());
}

/// Checks that the penalties have none of the options that choose a token, or end a text.
void check_no_sampling(const SamplingOptions& options) {
  const auto check = [](const char* name, auto value, decltype(value) neutral) {
    HEED_CHECK(value == neutral, "{}: penalties {} ({}) must be {}: no token is drawn", kBeamSearch,
               name, value, neutral);
  };
  check("temperature", options.temperature(), 1.0);
  check("top_k", options.top_k(), 0);
  check("top_p", options.top_p(), 1.0);
  check("min_p", options.min_p(), 0.0);
  HEED_CHECK(options.min_new_tokens() == 0 && options.end_tokens().empty(),
             "{}: penalties min_new_tokens and end_tokens must not be given: they are options of "
             "the search",
             kBeamSearch);
}

void check_beam_options(const BeamSearchOptions& options, int64_t vocabulary) {
  detail::check_positive(kBeamSearch, "num_beams", options.num_beams());
  detail::check_positive(kBeamSearch, "max_new_tokens", options.max_new_tokens());
  const auto returned = options.num_return_sequences();
  HEED_CHECK(returned >= 1 && returned <= options.num_beams(),
             "{}: num_return_sequences ({}) must be at least 1 and at most num_beams ({})",
             kBeamSearch, returned, options.num_beams());
  HEED_CHECK(std::isfinite(options.length_penalty()), "{}: length_penalty ({}) must be finite",
             kBeamSearch, options.length_penalty());
  const auto check_token = [&](const char* name, const std::optional<int64_t>& token) {
    HEED_CHECK(!token || (*token >= 0 && *token < vocabulary),
               "{}: {} ({}) must be at least 0 and below vocab_size ({})", kBeamSearch, name,
               token.value_or(0), vocabulary);
  };
  check_token("first_token", options.first_token());
  check_token("last_token", options.last_token());
  check_no_sampling(options.penalties());
  detail::check_penalties(kBeamSearch, penalties_of(options), vocabulary, /*has_history=*/true);
}

void check_prompts(Prompts prompts, int64_t vocabulary) {
  for (size_t n = 0; n < prompts.size(); ++n) {
    HEED_CHECK(!prompts[n].empty(), "{}: prompts[{}] must not be empty", kBeamSearch, n);
    for (size_t i = 0; i < prompts[n].size(); ++i) {
      const auto token = prompts[n][i];
      HEED_CHECK(token >= 0 && token < vocabulary,
                 "{}: prompts[{}][{}] ({}) must be at least 0 and below vocab_size ({})",
                 kBeamSearch, n, i, token, vocabulary);
    }
  }
}

/// Checks the arguments of a search but for its inputs.
void check_search(const Decoder& model, Prompts prompts, const BeamSearchOptions& options) {
  HEED_CHECK(model->options.head(), "{}: model must have a head: DecoderOptions::head is false",
             kBeamSearch);
  const auto vocabulary = detail::vocabulary(model->token_embedding);
  check_beam_options(options, vocabulary);
  check_prompts(prompts, vocabulary);
}

/// The inputs of every step: those given, with the memory projected.
TransformerInputs step_inputs(const Decoder& model, const TransformerInputs& given,
                              int64_t prompts) {
  HEED_CHECK(!given.rotary_angles(), "{}: rotary_angles must be absent: each step has its own",
             kBeamSearch);
  auto inputs = given;
  if (given.memory() && given.projected_memory().empty()) {
    inputs.projected_memory(model->project_memory(*given.memory())).memory(std::nullopt);
  }
  if (inputs.projected_memory().empty()) return inputs;
  const auto& key = inputs.projected_memory().front().key;
  detail::check_defined(kBeamSearch, "memory key", key);
  HEED_CHECK(key.dim() >= 1 && key.size(0) == prompts,
             "{}: memory {} must have a row for each of the prompts ({})", kBeamSearch,
             detail::shape(key), prompts);
  return inputs;
}

/// How many pages the beams of all prompts have at most. Beams share the full pages of a prompt.
int64_t pages_of(Prompts prompts, const BeamSearchOptions& options) {
  const auto size = options.cache().page_size();
  detail::check_positive(kBeamSearch, "cache page_size", size);
  detail::Count pages = 0;
  for (const auto& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.size());
    const auto longest = detail::Count(length) + (options.max_new_tokens() - 1);
    const auto shared = length / size;
    const detail::Count own = detail::ceil_div(longest.value(), size) - shared;
    pages = pages + shared + own * options.num_beams();
  }
  return std::max<int64_t>(pages.value(), 1);
}

/// The beams of all prompts, each a sequence of a cache.
class BeamSearch {
 public:
  BeamSearch(const Decoder& model, Prompts prompts, const BeamSearchOptions& options,
             const TransformerInputs& inputs)
      : model_(model),
        options_(options),
        penalties_(penalties_of(options)),
        inputs_(step_inputs(model, inputs, static_cast<int64_t>(prompts.size()))),
        cache_(model->make_paged_cache(pages_of(prompts, options), options.cache())) {
    for (const auto& prompt : prompts) {
      searches_.push_back({detail::Beams(prompt, options_), {cache_.add()}});
    }
  }

  std::vector<std::vector<BeamHypothesis>> run() {
    while (take_step()) {
    }
    return c10::fmap(searches_, [](const Search& search) { return search.beams.found(); });
  }

 private:
  /// A prompt's beams, and the sequence of each.
  struct Search {
    detail::Beams beams;
    std::vector<int64_t> sequences;
  };

  /// Continues all beams by a token. Returns false if there are none.
  bool take_step() {
    std::vector<TokenHistory> histories;
    for (const auto& search : searches_) {
      for (const auto& beam : search.beams.running()) {
        histories.push_back({beam.text, search.beams.length()});
      }
    }
    if (histories.empty()) return false;
    const auto continuations = likeliest(read(), histories);
    for (size_t n = 0, row = 0; n < searches_.size(); ++n) {
      const auto count = searches_[n].beams.running().size();
      if (count > 0) advance(searches_[n], continuations, row);
      row += count;
    }
    return true;
  }

  /// Lets the model read the tokens of all beams that it has not read. Returns the scores of their
  /// next tokens, [beams, V].
  at::Tensor read() {
    std::vector<int64_t> sequences, counts, rows, tokens;
    for (size_t n = 0; n < searches_.size(); ++n) {
      const auto& running = searches_[n].beams.running();
      for (size_t beam = 0; beam < running.size(); ++beam) {
        const auto sequence = searches_[n].sequences[beam];
        const auto& text = running[beam].text;
        const auto unread = text.begin() + static_cast<std::ptrdiff_t>(cache_.length(sequence));
        sequences.push_back(sequence);
        counts.push_back(text.end() - unread);
        rows.push_back(static_cast<int64_t>(n));
        tokens.insert(tokens.end(), unread, text.end());
      }
    }
    auto step = cache_.append(sequences, counts);
    if (!inputs_.projected_memory().empty()) step.memory_rows(rows);
    const auto given = detail::to_device(tokens, cache_.options().device()).unsqueeze(0);
    return model_->forward_cached(given, step, /*last_only=*/true, inputs_)[0];
  }

  /// The only token that may follow so many generated ones, if there is one. All texts have as
  /// many.
  std::optional<int64_t> forced_token(int64_t generated) const {
    if (options_.last_token() && generated == options_.max_new_tokens() - 1) {
      return options_.last_token();
    }
    return generated == 0 ? options_.first_token() : std::nullopt;
  }

  /// The likeliest tokens of each row, and their log-probabilities.
  struct Likeliest {
    at::Tensor tokens, scores;  // [beams, K], on the CPU
  };

  Likeliest likeliest(const at::Tensor& scores, at::ArrayRef<TokenHistory> histories) const {
    auto log_probabilities = at::log_softmax(scores, 1, at::kDouble);
    if (detail::has_penalties(penalties_)) {
      log_probabilities = detail::penalize(log_probabilities, penalties_, histories);
    }
    if (const auto token = forced_token(histories.front().generated)) {
      constexpr auto kImpossible = -std::numeric_limits<double>::infinity();
      log_probabilities = at::full_like(log_probabilities, kImpossible);
      log_probabilities.select(1, *token).zero_();
    }
    const auto count = std::min(searches_.front().beams.candidates(), scores.size(1));
    const auto [best, tokens] = log_probabilities.topk(count, 1);
    return {tokens.cpu(), best.cpu()};
  }

  /// Continues the beams of a prompt, whose rows begin at `row`. Each is a fork of the sequence
  /// that it goes on from, and these are removed.
  void advance(Search& search, const Likeliest& continuations, size_t row) {
    const auto tokens = continuations.tokens.accessor<int64_t, 2>();
    const auto scores = continuations.scores.accessor<double, 2>();
    const auto& running = search.beams.running();
    std::vector<detail::Continuation> candidates;
    for (size_t beam = 0; beam < running.size(); ++beam) {
      const auto own = static_cast<int64_t>(row + beam);
      for (int64_t i = 0; i < scores.size(1); ++i) {
        HEED_CHECK(!std::isnan(scores[own][i]), "{}: scores must not be NaN", kBeamSearch);
        candidates.push_back({beam, tokens[own][i], running[beam].score + scores[own][i]});
      }
    }
    const auto parents = search.beams.advance(std::move(candidates));
    auto next =
        c10::fmap(parents, [&](size_t parent) { return cache_.fork(search.sequences[parent]); });
    for (const auto sequence : search.sequences) cache_.remove(sequence);
    search.sequences = std::move(next);
  }

  const Decoder& model_;
  const BeamSearchOptions& options_;
  const SamplingOptions penalties_;
  const TransformerInputs inputs_;
  PagedKVCache cache_;
  std::vector<Search> searches_;  // one for each prompt
};

}  // namespace

std::vector<std::vector<BeamHypothesis>> beam_search(const Decoder& model, Prompts prompts,
                                                     const BeamSearchOptions& options,
                                                     const TransformerInputs& inputs) {
  HEED_CHECK(!model.is_empty(), "{}: model must not be empty", kBeamSearch);
  check_search(model, prompts, options);
  if (prompts.empty()) return {};
  const at::NoGradGuard no_grad;
  return BeamSearch(model, prompts, options, inputs).run();
}

std::vector<std::vector<BeamHypothesis>> beam_search(const EncoderDecoder& model,
                                                     const at::Tensor& source, Prompts prompts,
                                                     const BeamSearchOptions& options,
                                                     const EncoderDecoderInputs& inputs) {
  HEED_CHECK(!model.is_empty(), "{}: model must not be empty", kBeamSearch);
  check_search(model->decoder, prompts, options);
  detail::check_defined(kBeamSearch, "source", source);
  const auto count = static_cast<int64_t>(prompts.size());
  HEED_CHECK(source.dim() >= 1 && source.size(0) == count,
             "{}: source {} must have a row for each of the prompts ({})", kBeamSearch,
             detail::shape(source), count);
  if (prompts.empty()) return {};
  const at::NoGradGuard no_grad;
  return BeamSearch(model->decoder, prompts, options, model.ptr()->target_inputs(source, inputs))
      .run();
}

}  // namespace heed
