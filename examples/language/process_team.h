#pragma once

#include <memory>

#include "team.h"

namespace heed::examples {

/// The processes that torchrun has started. Throws std::runtime_error where heed was built without
/// heed::distributed.
std::unique_ptr<Team> make_process_team(const TeamSizes& sizes);

}  // namespace heed::examples
