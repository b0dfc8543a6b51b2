// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/beam_search.h>
#include <heed/sampling.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heed::examples {

/// How text is generated unless a command line says otherwise.
struct GenerationDefaults {
  SamplingOptions sampling = SamplingOptions().temperature(0.8);
  bool greedy = false;            ///< the most likely tokens are taken, whatever the temperature
  std::optional<int64_t> tokens;  ///< of an answer, at most
  /// Beams that search for the likeliest text where no token is drawn; 1: the most likely tokens
  /// are taken.
  int64_t beams = 1;
  double length_penalty = 1.0;  ///< of a search with beams
  EarlyStopping early_stopping = EarlyStopping::estimated;
  std::optional<int64_t> first_token, last_token;  ///< see BeamSearchOptions
};

/// The defaults that the folder's generation_config.json, or else its config.json, gives a
/// published model, with those of transformers for fields that are missing. Throws
/// std::runtime_error when the file is not a JSON object, or a field is not what transformers
/// expects.
GenerationDefaults read_generation_defaults(const std::string& folder);

/// The defaults for the targets of an encoder-decoder, which may have a first and a last token, and
/// whose max_length and min_length count the token that each begins with. Throws as
/// `read_generation_defaults` does.
GenerationDefaults read_target_defaults(const std::string& folder);

/// The token that each target of an encoder-decoder begins with. Throws as
/// `read_generation_defaults` does, and when neither file names it.
int64_t target_start(const std::string& folder);

/// The tokens that a field of generation_config.json names, or else that of config.json: a number
/// or a list of them. Throws std::runtime_error as `read_generation_defaults` does.
std::vector<int64_t> special_tokens(const std::string& folder, const std::string& field);

/// The work of a program besides sampling.
struct Generation {
  bool with_beams = false;  ///< it searches for the likeliest text
  bool of_target = false;   ///< it writes the target of an encoder-decoder
};

/// A sentence about the settings in these files that would change the text, and that a program
/// which samples with these options does not follow; empty if there are none. Throws
/// std::runtime_error when the file is not a JSON object.
std::string left_out(const std::string& folder, const SamplingOptions& sampling,
                     const Generation& generation = {});

}  // namespace heed::examples
