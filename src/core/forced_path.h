#pragma once

#include <heed/attend_path.h>

#include <optional>

namespace heed::detail {

/// The path of the innermost ScopedPath of this thread, if there is one.
std::optional<AttendPath> forced_path();

/// Makes `attend` take a path for every problem of this thread that the path takes, whether or not
/// it is the best, while the object lives. For tests and benchmarks.
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
