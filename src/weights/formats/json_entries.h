#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Calls `visit` for each entry of a JSON object {name: value, ...} in turn: of all values, only
/// one is in memory. With a `key`, the object is the value of that key in another object. Throws
/// c10::ValueError when the file is not such JSON, has a name twice, or a value of more than 1000
/// parts.
void for_each_entry(const Bytes& json, const std::string& key,
                    const std::function<void(const std::string&, const nlohmann::json&)>& visit);

}  // namespace heed::detail
