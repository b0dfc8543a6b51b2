// SPDX-License-Identifier: BSD-3-Clause
#include "models/penalties.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "core/to_device.h"

// Each option becomes a list of scores, as places in the flat scores with a number each. So an
// option costs as much as there are tokens so far, however large the vocabulary is.

namespace heed::detail {

namespace {

constexpr auto kNever = -std::numeric_limits<double>::infinity();

/// Some of the scores. A place may come several times.
struct ScorePlaces {
  std::vector<int64_t> indices;
  std::vector<double> numbers;  ///< one for each

  void add(int64_t index, double number) {
    indices.push_back(index);
    numbers.push_back(number);
  }
};

/// All changes that the options make, in their order.
struct PenaltyPlan {
  ScorePlaces added, divided;        ///< logit_bias; repetition_penalty
  ScorePlaces each_time, once;       ///< frequency_penalty; presence_penalty
  std::vector<int64_t> never_taken;  ///< no_repeat_ngram_size and min_new_tokens
};

/// Calls hide(token) for each token that would repeat n tokens in a row.
template <typename Hide>
void hide_repeating(at::ArrayRef<int64_t> tokens, int64_t n, const Hide& hide) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (size < n) return;
  const auto* last = tokens.end() - (n - 1);  // the next token would follow these
  for (const auto* first = tokens.begin(); first + (n - 1) != tokens.end(); ++first) {
    if (std::equal(last, tokens.end(), first)) hide(first[n - 1]);
  }
}

/// Adds what the options do to a row, whose scores begin at `row`.
void add_row(const SamplingOptions& options, const TokenHistory& history, int64_t row,
             PenaltyPlan& plan) {
  for (const auto& [token, number] : options.logit_bias()) plan.added.add(row + token, number);
  if (options.repetition_penalty() != 1.0) {
    for (const auto token : history.tokens) {
      plan.divided.add(row + token, options.repetition_penalty());
    }
  }
  const auto prompt = history.tokens.size() - static_cast<size_t>(history.generated);
  for (const auto token : history.tokens.slice(prompt)) {
    if (options.frequency_penalty() != 0.0) {
      plan.each_time.add(row + token, -options.frequency_penalty());
    }
    if (options.presence_penalty() != 0.0) {
      plan.once.add(row + token, options.presence_penalty());
    }
  }
  const auto hide = [&](int64_t token) { plan.never_taken.push_back(row + token); };
  if (options.no_repeat_ngram_size() > 0) {
    hide_repeating(history.tokens, options.no_repeat_ngram_size(), hide);
  }
  if (history.generated < options.min_new_tokens()) {
    for (const auto token : options.end_tokens()) hide(token);
  }
}

/// Replaces the scores [N * V] at these places by change(scores, numbers). The change is made once
/// where a place comes several times with one number.
template <typename Change>
void change_at(const at::Tensor& scores, const ScorePlaces& places, const Change& change) {
  if (places.indices.empty()) return;
  const auto device = scores.device();
  const auto indices = to_device(places.indices, device);
  const auto numbers = to_device(at::tensor(places.numbers, at::kDouble), device);
  scores.scatter_(0, indices, change(scores.gather(0, indices), numbers));
}

/// Adds the numbers to the scores [N * V], as often as a place comes.
void add_at(const at::Tensor& scores, const ScorePlaces& places) {
  if (places.indices.empty()) return;
  const auto device = scores.device();
  scores.scatter_add_(0, to_device(places.indices, device),
                      to_device(at::tensor(places.numbers, at::kDouble), device));
}

void check_token(const char* function, const std::string& name, int64_t token, int64_t vocabulary) {
  HEED_CHECK(token >= 0 && token < vocabulary,
             "{}: {} ({}) must be at least 0 and below scores dim 1 ({})", function, name, token,
             vocabulary);
}

void check_named_tokens(const char* function, const SamplingOptions& options, int64_t vocabulary) {
  const auto& ends = options.end_tokens();
  HEED_CHECK(options.min_new_tokens() == 0 || !ends.empty(),
             "{}: end_tokens must not be empty with min_new_tokens ({})", function,
             options.min_new_tokens());
  for (size_t i = 0; i < ends.size(); ++i) {
    check_token(function, fmt::format("end_tokens[{}]", i), ends[i], vocabulary);
  }
  for (const auto& [token, number] : options.logit_bias()) {
    check_token(function, "logit_bias token", token, vocabulary);
    HEED_CHECK(std::isfinite(number) || number == kNever,
               "{}: logit_bias of token {} ({}) must be finite or -inf", function, token, number);
  }
}

/// Checks that no option looks at the tokens so far.
void check_without_history(const char* function, const SamplingOptions& options) {
  const auto check = [&](const char* name, auto value, decltype(value) neutral) {
    HEED_CHECK(value == neutral, "{}: {} ({}) must be {} without histories", function, name, value,
               neutral);
  };
  check("repetition_penalty", options.repetition_penalty(), 1.0);
  check("presence_penalty", options.presence_penalty(), 0.0);
  check("frequency_penalty", options.frequency_penalty(), 0.0);
  check("no_repeat_ngram_size", options.no_repeat_ngram_size(), 0);
  check("min_new_tokens", options.min_new_tokens(), 0);
}

}  // namespace

void check_penalties(const char* function, const SamplingOptions& options, int64_t vocabulary,
                     bool has_history) {
  const auto penalty = options.repetition_penalty();
  HEED_CHECK(std::isfinite(penalty) && penalty > 0.0,
             "{}: repetition_penalty ({}) must be finite and above 0", function, penalty);
  for (const auto& [name, value] : {std::pair("presence_penalty", options.presence_penalty()),
                                    std::pair("frequency_penalty", options.frequency_penalty())}) {
    HEED_CHECK(std::isfinite(value), "{}: {} ({}) must be finite", function, name, value);
  }
  check_not_negative(function, "no_repeat_ngram_size", options.no_repeat_ngram_size());
  check_not_negative(function, "min_new_tokens", options.min_new_tokens());
  check_named_tokens(function, options, vocabulary);
  if (!has_history) check_without_history(function, options);
}

void check_history(const char* function, size_t row, const TokenHistory& history,
                   int64_t vocabulary) {
  const auto& tokens = history.tokens;
  HEED_CHECK(history.generated >= 0 && static_cast<size_t>(history.generated) <= tokens.size(),
             "{}: histories[{}].generated ({}) must be at least 0 and at most tokens size ({})",
             function, row, history.generated, tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    HEED_CHECK(tokens[i] >= 0 && tokens[i] < vocabulary,
               "{}: histories[{}].tokens[{}] ({}) must be at least 0 and below scores dim 1 ({})",
               function, row, i, tokens[i], vocabulary);
  }
}

bool has_penalties(const SamplingOptions& options) {
  return options.repetition_penalty() != 1.0 || options.presence_penalty() != 0.0 ||
         options.frequency_penalty() != 0.0 || options.no_repeat_ngram_size() > 0 ||
         options.min_new_tokens() > 0 || !options.logit_bias().empty();
}

at::Tensor penalize(const at::Tensor& scores, at::ArrayRef<SamplingOptions> options,
                    at::ArrayRef<TokenHistory> histories) {
  const auto vocabulary = scores.size(1);
  PenaltyPlan plan;
  for (int64_t n = 0; n < scores.size(0); ++n) {
    const auto row = static_cast<size_t>(n);
    add_row(options.size() == 1 ? options[0] : options[row],
            histories.empty() ? TokenHistory() : histories[row], n * vocabulary, plan);
  }
  const auto penalized = at::empty(scores.sizes(), scores.options().dtype(at::kDouble));
  penalized.copy_(scores);
  const auto flat = penalized.view({scores.numel()});
  add_at(flat, plan.added);
  change_at(flat, plan.divided, [](const at::Tensor& taken, const at::Tensor& penalties) {
    return at::where(taken.lt(0.0), taken * penalties, taken / penalties);
  });
  add_at(flat, plan.each_time);
  change_at(flat, plan.once,
            [](const at::Tensor& taken, const at::Tensor& penalties) { return taken - penalties; });
  if (!plan.never_taken.empty()) {
    flat.index_fill_(0, to_device(plan.never_taken, scores.device()), kNever);
  }
  return flat.view(scores.sizes());
}

}  // namespace heed::detail
