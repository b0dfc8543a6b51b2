#pragma once

#include <heed/attend_path.h>

#include "attend/paths/paths.h"

namespace heed::detail {

/// The only place where a path is chosen: the best path that takes the problem, or the path that a
/// ScopedPath requests if that path takes the problem.
AttendPath choose_path(const Problem& problem);

/// The same call without the keys that its only query does not see; on CUDA, where kernels would
/// need a window for it.
Problem without_unseen_keys(const Problem& problem);

/// Computes the problem on its path.
Attended run(const Problem& problem);

}  // namespace heed::detail
