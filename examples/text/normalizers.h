#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "json_fields.h"

namespace heed::examples::text {

/// Changes text before it is split.
using Normalizer = std::function<std::string(std::string_view)>;

/// From the field "normalizer", which may be null. Throws std::runtime_error that names what is
/// not understood.
Normalizer read_normalizer(const Json* normalizer);

/// The fields "pattern" and "content" of what replaces each match by a text.
Normalizer read_replacement(JsonFields& fields);

}  // namespace heed::examples::text
