// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

namespace heed::distributed::detail {

/// The values of a launcher's environment variables.
struct LaunchEnvironment {
  int64_t rank, world_size, local_rank;
  bool one_machine;  ///< whether all processes are on this machine
  std::string master_address;
  uint16_t master_port;
  bool launcher_has_store;   ///< whether the launcher listens at master_port; else rank 0 does
  std::string store_prefix;  ///< of the store's keys: torchrun's store outlives a restart
};

/// Reads the variables. Throws c10::ValueError that names the one that is missing or invalid.
LaunchEnvironment read_launch_environment(const char* function);

}  // namespace heed::distributed::detail
