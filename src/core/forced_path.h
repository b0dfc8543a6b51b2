// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend_path.h>

#include <optional>

namespace heed::detail {

/// The path of the innermost ScopedPath of this thread, if there is one.
std::optional<AttendPath> forced_path();

/// While this object exists, `attend` in this thread takes the given path for every problem that
/// the path takes, even if another path is better. For tests and benchmarks.
class ScopedPath {
 public:
  explicit ScopedPath(AttendPath path);
  ~ScopedPath();
  ScopedPath(const ScopedPath&) = delete;
  ScopedPath& operator=(const ScopedPath&) = delete;

 private:
  std::optional<AttendPath> previous_;
};

}  // namespace heed::detail
