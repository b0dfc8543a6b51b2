#pragma once

#include <heed/attend_path.h>

#include "core/problem.h"

namespace heed::detail {

/// The one place where a path is chosen: the best that takes the problem, or the one that a
/// ScopedPath asks for where it takes the problem.
AttendPath choose_path(const Problem& problem);

}  // namespace heed::detail
