#pragma once

#include <heed/attend.h>

#include <optional>

namespace heed::detail {

/// Makes `attend` take a path for every CPU problem of this thread that is not empty, whether or
/// not it is the best, while the object lives. For tests and benchmarks.
class HEED_API ScopedPath {
 public:
  explicit ScopedPath(AttendPath path);
  ~ScopedPath();
  ScopedPath(const ScopedPath&) = delete;
  ScopedPath& operator=(const ScopedPath&) = delete;

 private:
  std::optional<AttendPath> previous_;
};

}  // namespace heed::detail
