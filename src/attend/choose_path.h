// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend_path.h>

#include "attend/paths/paths.h"

namespace heed::detail {

/// The only place where a path is chosen: the best path that takes the problem, or the path that a
/// ScopedPath requests if that path takes the problem.
AttendPath choose_path(const Problem& problem);

/// On CUDA, turns a window of a single query into a view of the keys that it sees, so that the
/// kernels need no window. Returns other problems unchanged.
Problem without_unseen_keys(const Problem& problem);

/// Computes the problem on the path that choose_path returns.
Attended attend_problem(const Problem& problem);

}  // namespace heed::detail
