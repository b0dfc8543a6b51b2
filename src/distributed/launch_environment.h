#pragma once

#include <cstdint>
#include <string>

namespace heed::distributed::detail {

/// What a launcher says in environment variables.
struct LaunchEnvironment {
  int64_t rank, world_size, local_rank;
  bool one_machine;  ///< whether all processes are on this machine
  std::string master_address;
  uint16_t master_port;
  bool launcher_has_store;   ///< whether the launcher listens at master_port, or else rank 0
  std::string store_prefix;  ///< of the keys; torchrun's store outlives a restart
};

/// Throws c10::ValueError that names the variable that is missing or invalid.
LaunchEnvironment read_launch_environment(const char* function);

}  // namespace heed::distributed::detail
