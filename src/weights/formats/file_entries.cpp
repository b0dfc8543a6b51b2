// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/file_entries.h"

namespace heed::detail {

bool add_tensor(FileEntries& entries, const std::string& name,
                const std::variant<at::Tensor, Unheld>& tensor) {
  if (const auto* held = std::get_if<at::Tensor>(&tensor)) {
    return entries.tensors.emplace(name, *held).second && entries.others.count(name) == 0;
  }
  const auto& what = std::get<Unheld>(tensor).what;
  entries.unheld.insert(name);
  return entries.others.emplace(name, what).second && entries.tensors.count(name) == 0;
}

void add_second_names(FileEntries& entries, const std::map<std::string, std::string>& metadata) {
  NamedTensors seconds;
  for (const auto& [name, first] : metadata) {
    const auto tensor = entries.tensors.find(first);
    const bool is_free = entries.tensors.count(name) + entries.others.count(name) == 0;
    // The value of "format" is that of the program, such as "pt".
    if (name == "format" || tensor == entries.tensors.end() || !is_free) continue;
    seconds.emplace(name, tensor->second);
    entries.constants.insert(name);
  }
  entries.tensors.merge(seconds);
}

}  // namespace heed::detail
