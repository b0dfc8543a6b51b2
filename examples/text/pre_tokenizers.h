#pragma once

#include <functional>
#include <string_view>

#include "json_fields.h"

namespace heed::examples::text {

/// Receives words; they are valid during the call.
using Emit = std::function<void(std::string_view)>;

/// Splits text, which is not empty, into words.
using PreTokenizer = std::function<void(std::string_view, const Emit&)>;

/// From the field "pre_tokenizer", which may be null. Throws std::runtime_error that names what is
/// not understood.
PreTokenizer read_pre_tokenizer(const Json* pre_tokenizer);

}  // namespace heed::examples::text
