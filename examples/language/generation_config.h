#pragma once

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
};

/// The defaults that the folder's generation_config.json, or else its config.json, gives a
/// published model, with those of transformers for fields that are missing. Throws
/// std::runtime_error when the file is not a JSON object, or a field is not what transformers
/// expects.
GenerationDefaults read_generation_defaults(const std::string& folder);

/// The tokens that a field of generation_config.json names, or else that of config.json: a number
/// or a list of them. Throws std::runtime_error as `read_generation_defaults` does.
std::vector<int64_t> special_tokens(const std::string& folder, const std::string& field);

/// A sentence about the settings in these files that would change the text, and that a program
/// which samples with these options, or searches with beams, does not follow; empty if there are
/// none. Throws std::runtime_error when the file is not a JSON object.
std::string left_out(const std::string& folder, const SamplingOptions& sampling,
                     bool with_beams = false);

}  // namespace heed::examples
