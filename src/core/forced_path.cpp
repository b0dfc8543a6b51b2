// SPDX-License-Identifier: BSD-3-Clause
#include "core/forced_path.h"

namespace heed::detail {

namespace {

thread_local std::optional<AttendPath> path_in_force;

}  // namespace

std::optional<AttendPath> forced_path() { return path_in_force; }

ScopedPath::ScopedPath(AttendPath path) : previous_(path_in_force) { path_in_force = path; }

ScopedPath::~ScopedPath() { path_in_force = previous_; }

}  // namespace heed::detail
