// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sampling_arguments.h"

namespace heed::examples {

/// A prompt with options of its own.
struct JsonRequest {
  std::string prompt;
  std::optional<int64_t> tokens;  ///< of the answer, at most
  std::optional<uint64_t> seed;
  SamplingArguments sampling;
};

/// Reads a JSON object: "prompt", and options by the names of the command line's, with underscores,
/// which replace those of `otherwise`: {"prompt": "Once", "temperature": 0.7, "stop": ["."]}.
/// Throws std::runtime_error that names the field for one that is unknown or out of range.
JsonRequest read_json_request(const std::string& line, SamplingArguments otherwise);

}  // namespace heed::examples
