// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace heed::detail {

/// How many pairs of names may be compared for an error. So many take some 50 ms for names of 50
/// characters.
inline constexpr size_t kMostComparedNames = 10'000;

/// How unlike two names are: 0 if one is the other after a prefix or before an ending, such as
/// "attn.fc_q.weight" and "fc_q.weight"; otherwise the number of characters to insert, delete or
/// replace. None if it is not below `limit`.
std::optional<size_t> unlikeness(const std::string& one, const std::string& other, size_t limit);

/// The limit of `unlikeness` from which on no name is similar to `name`.
inline size_t least_unlike(const std::string& name) { return name.size() / 2 + 1; }

}  // namespace heed::detail
