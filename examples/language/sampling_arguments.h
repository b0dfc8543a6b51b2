#pragma once

#include <heed/sampling.h>

#include <cstdint>

#include "support/command_line.h"

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

inline void add_sampling_options(CommandLine& app, SamplingArguments& arguments) {
  auto& options = arguments.options;
  app.add_flag("--greedy", arguments.greedy, "always take the most likely token");
  app.add("--temperature", options.temperature(),
          "below 1: more likely tokens; above 1: more variety", above_zero());
  app.whole_number("--top-k", options.top_k(), "sample from the k most likely tokens; 0 means all",
                   0);
  app.add("--top-p", options.top_p(),
          "sample from the most likely tokens that together reach this probability", share());
  app.add("--min-p", options.min_p(),
          "sample from tokens with this share of the most likely one's probability", share());
  app.add("--seed", arguments.seed, "the same seed gives the same text", seed());
}

}  // namespace heed::examples
