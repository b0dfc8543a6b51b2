// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// The name of a JSON file's format, for errors, and the limits of a value in it.
struct JsonFile {
  const char* format = "PyTorch";
  size_t most_parts = 1000;  // enough for sizes and strides of 64 dims
  size_t most_depth = 1000;  // of nested objects and arrays
};

/// Calls `visit` for each entry of a JSON object {name: value, ...} in turn; only one value is in
/// memory at a time. With a `key`, the object is the value of that key in another object. Throws
/// c10::ValueError when the file is not such JSON, has a name twice, or a value of too many parts.
void for_each_entry(const Bytes& json, const std::string& key,
                    const std::function<void(const std::string&, const nlohmann::json&)>& visit,
                    const JsonFile& file = {});

}  // namespace heed::detail
