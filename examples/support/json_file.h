// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <istream>
#include <nlohmann/json.hpp>
#include <string>

namespace heed::examples {

/// Reads JSON that anybody may have written. Throws std::runtime_error when it is longer than 128
/// MiB, is not JSON, names a field of an object twice, is nested deeper than 32 levels, or has more
/// than 4 million values or a million fields: some three times as many as the largest vocabularies
/// have. What it becomes takes less than 1 GB beside the texts in it.
nlohmann::json parse_json(const std::string& text);

/// Parses what is left of a file, within the same limits.
nlohmann::json read_json(std::istream& file);

/// Reads a file that must be a JSON object. The path is at the beginning of errors.
nlohmann::json read_json_object(const std::string& path);

/// A text as an error shows it: in quotation marks, and cut if it is long.
std::string in_quotes(const std::string& text);

}  // namespace heed::examples
