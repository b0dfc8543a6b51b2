// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/split_modules.h"

#include <fmt/core.h>
#include <heed/distributed/parameter_shards.h>

#include <sstream>
#include <unordered_set>

namespace heed::distributed::detail {

std::vector<Submodule> submodules_of(torch::nn::Module& module) {
  std::vector<Submodule> found = {{"", &module, nullptr}};
  std::unordered_set<const torch::nn::Module*> seen = {&module};
  for (const auto& submodule : module.named_modules("", /*include_self=*/false)) {
    const auto& owner = submodule.value();
    if (seen.insert(owner.get()).second) found.push_back({submodule.key(), owner.get(), owner});
  }
  return found;
}

int64_t checksum(const at::Tensor& tensor) {
  const auto bits = [](size_t size) {
    return size == 1 ? at::kByte : size == 2 ? at::kShort : size == 4 ? at::kInt : at::kLong;
  };
  const auto numbers = tensor.detach().flatten();
  return numbers.view(bits(numbers.element_size())).sum(at::kLong).item<int64_t>();
}

std::string description(torch::nn::Module& module) {
  if (!shards_of(module).empty()) return "is split already\n";
  std::string text;
  for (const auto& submodule : submodules_of(module)) {
    std::ostringstream line;
    submodule.module->pretty_print(line);
    text += fmt::format("{}{}{}\n", submodule.name, submodule.name.empty() ? "" : " ", line.str());
  }
  for (const auto& parameter : module.named_parameters()) {
    const auto& value = parameter.value();
    text += fmt::format("{} {} {} {}{} {:x}\n", parameter.key(), c10::str(value.sizes()),
                        c10::toString(value.scalar_type()), value.device().str(),
                        value.requires_grad() ? "" : " without gradient",
                        value.is_meta() ? 0 : checksum(value));
  }
  return text;
}

}  // namespace heed::distributed::detail
