// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

namespace heed::detail {

/// The parts of a dotted name before and after a name that was found in it: "layers.3" and
/// "weight".
struct Surroundings {
  std::string before, after;

  std::string around(const std::string& name) const {
    std::string whole;
    for (const auto* part : {&before, &name, &after}) {
      if (!whole.empty() && !part->empty()) whole += '.';
      whole += *part;
    }
    return whole;
  }
};

/// Finds `part` in the dotted `name`, as one or more whole components. The empty part is found at
/// the start of every name.
inline std::optional<Surroundings> find_part(const std::string& part, const std::string& name) {
  if (part.empty()) return Surroundings{"", name};
  for (auto at = name.find(part); at != std::string::npos; at = name.find(part, at + 1)) {
    const auto end = at + part.size();
    const bool starts = at == 0 || name[at - 1] == '.';
    const bool ends = end == name.size() || name[end] == '.';
    if (!starts || !ends) continue;
    return Surroundings{name.substr(0, at == 0 ? 0 : at - 1),
                        end == name.size() ? "" : name.substr(end + 1)};
  }
  return std::nullopt;
}

}  // namespace heed::detail
