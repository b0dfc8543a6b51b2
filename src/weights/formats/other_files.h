// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "weights/formats/bytes.h"

/// Files that are often given in place of weights.

namespace heed::detail {

/// Says what a file is that holds no weights, and what to do, by its first bytes: "it is an HTML
/// page: ...". None if these tell nothing.
std::optional<std::string> other_file(const Bytes& bytes);

/// Throws c10::ValueError that names the formats that heed reads, and says what the file is
/// instead.
[[noreturn]] void refuse_format(const Bytes& bytes, std::string_view what);

/// The path of the weights in a folder in Hugging Face's format; none if it has none.
std::optional<std::string> weights_in(const std::string& folder);

}  // namespace heed::detail
