#pragma once

#include <heed/sampling.h>

#include <CLI/CLI.hpp>
#include <cstdint>

#include "support/validators.h"

namespace heed::examples {

/// How a program samples, by its command line.
struct SamplingArguments {
  SamplingOptions options = SamplingOptions().temperature(0.8);
  bool greedy = false;
  uint64_t seed = 0;

  SamplingOptions chosen() const {
    auto chosen = options;
    if (greedy) chosen.temperature(0);
    return chosen;
  }
};

inline void add_sampling_options(CLI::App& app, SamplingArguments& arguments) {
  auto& options = arguments.options;
  app.add_flag("--greedy", arguments.greedy, "always take the most likely token");
  app.add_option("--temperature", options.temperature(),
                 "below 1: more likely tokens; above 1: more variety")
      ->check(above_zero());
  app.add_option("--top-k", options.top_k(), "sample from the k most likely tokens; 0 means all")
      ->check(whole_number(0));
  app.add_option("--top-p", options.top_p(),
                 "sample from the most likely tokens that together reach this probability")
      ->check(share());
  app.add_option("--min-p", options.min_p(),
                 "sample from tokens with this share of the most likely one's probability")
      ->check(share());
  app.add_option("--seed", arguments.seed, "the same seed gives the same text")->check(seed());
}

}  // namespace heed::examples
