// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/sampling.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "language_model.h"
#include "support/command_line.h"

namespace heed::examples {

/// How a program samples, and where it ends a text, by its command line.
struct SamplingArguments {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> no_repeat_ngram_size, min_new_tokens;
  bool greedy = false;
  uint64_t seed = 0;
  std::vector<std::string> stops;
  bool raw = false;

  /// The model's own options, but for those of the command line.
  SamplingOptions chosen(const LanguageModel& model) const {
    auto chosen = model.defaults.sampling;
    replace(chosen.temperature(), temperature);
    replace(chosen.top_k(), top_k);
    replace(chosen.top_p(), top_p);
    replace(chosen.min_p(), min_p);
    replace(chosen.repetition_penalty(), repetition_penalty);
    replace(chosen.presence_penalty(), presence_penalty);
    replace(chosen.frequency_penalty(), frequency_penalty);
    replace(chosen.no_repeat_ngram_size(), no_repeat_ngram_size);
    replace(chosen.min_new_tokens(), min_new_tokens);
    const bool asked = temperature || top_k || top_p || min_p;
    if (greedy || (model.defaults.greedy && !asked)) chosen.temperature(0);
    if (model.ends.empty()) chosen.min_new_tokens(0);  // no token ends a text
    if (chosen.min_new_tokens() > 0) chosen.end_tokens(model.ends);
    return chosen;
  }

 private:
  template <typename Number>
  static void replace(Number& option, const std::optional<Number>& given) {
    if (given) option = *given;
  }
};

/// The end of a program's description: what holds unless its options say otherwise.
inline std::string about_defaults() {
  return "Unless options say otherwise, tokens are chosen as transformers does by the folder's\n"
         "generation_config.json, and by temperature 0.8 if the model is of train_gpt.\n"
         "Chat templates are not applied.";
}

inline void add_sampling_options(CommandLine& app, SamplingArguments& arguments) {
  app.add_flag("--greedy", arguments.greedy, "always take the most likely token");
  app.add("--temperature", arguments.temperature,
          "below 1: more likely tokens; above 1: more variety", above_zero());
  app.whole_number("--top-k", arguments.top_k, "sample from the k most likely tokens; 0 means all",
                   0);
  app.add("--top-p", arguments.top_p,
          "sample from the most likely tokens that together reach this probability", share());
  app.add("--min-p", arguments.min_p,
          "sample from tokens with this share of the most likely one's probability", share());
  app.add("--repetition-penalty", arguments.repetition_penalty,
          "above 1: tokens of the prompt and the text become less likely", above_zero());
  app.add("--presence-penalty", arguments.presence_penalty,
          "subtracted from the scores of tokens that have been generated", finite());
  app.add("--frequency-penalty", arguments.frequency_penalty,
          "the same for each time that a token has been generated", finite());
  app.whole_number("--no-repeat-ngram-size", arguments.no_repeat_ngram_size,
                   "no n tokens in a row come twice; 0: they may", 0);
  app.whole_number("--min-new-tokens", arguments.min_new_tokens,
                   "the text does not end before so many tokens", 0);
  app.add("--seed", arguments.seed, "the same seed gives the same text", seed());
}

/// How prompts are read, and where texts end.
inline void add_text_options(CommandLine& app, SamplingArguments& arguments) {
  app.add("--stop", arguments.stops, "a text before which the answer ends; may be repeated",
          not_empty())
      ->default_str("")
      ->allow_extra_args(false);
  app.add_flag("--raw", arguments.raw,
               "read prompts without the tokens that the tokenizer puts around a text");
}

}  // namespace heed::examples
