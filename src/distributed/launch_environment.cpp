// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/launch_environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>

#include "core/error.h"

namespace heed::distributed::detail {

namespace {

std::optional<std::string> variable(const char* name) {
  const auto* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::string required(const char* function, const char* name) {
  const auto value = variable(name);
  HEED_CHECK(value, "{}: environment variable {} must be set; torchrun sets it", function, name);
  return *value;
}

int64_t integer(const char* function, const char* name, const std::string& text, int64_t lowest,
                int64_t highest) {
  int64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  HEED_CHECK(error == std::errc() && stop == end && value >= lowest && value <= highest,
             "{}: environment variable {} ({}) must be an integer from {} to {}", function, name,
             text, lowest, highest);
  return value;
}

}  // namespace

LaunchEnvironment read_launch_environment(const char* function) {
  constexpr int64_t kMostProcesses = std::numeric_limits<int32_t>::max();
  const auto read = [&](const char* name, int64_t lowest, int64_t highest) {
    return integer(function, name, required(function, name), lowest, highest);
  };
  const auto read_or = [&](const char* name, int64_t lowest, int64_t highest, int64_t otherwise) {
    const auto text = variable(name);
    return text ? integer(function, name, *text, lowest, highest) : otherwise;
  };
  LaunchEnvironment environment{};
  environment.world_size = read("WORLD_SIZE", 1, kMostProcesses);
  environment.rank = read("RANK", 0, environment.world_size - 1);
  environment.master_address = required(function, "MASTER_ADDR");
  environment.master_port = static_cast<uint16_t>(read("MASTER_PORT", 1, 65535));
  const auto local_size = read_or("LOCAL_WORLD_SIZE", 1, environment.world_size, 0);
  environment.local_rank = read_or("LOCAL_RANK", 0, environment.world_size - 1, 0);
  const auto& address = environment.master_address;
  environment.one_machine = local_size == environment.world_size || address == "localhost" ||
                            address == "::1" || address.rfind("127.", 0) == 0;
  environment.launcher_has_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  environment.store_prefix = "heed/attempt_" + variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return environment;
}

}  // namespace heed::distributed::detail
