#pragma once

#include <string>

namespace heed::examples {

/// A lock on a folder. While one process holds it, no other process can.
class FolderLock {
 public:
  FolderLock() = default;
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Returns false if another process holds the folder. A folder that is missing or cannot be
  /// locked is not an error here; the code that reads and writes there reports it.
  bool take(const std::string& folder);

 private:
  int file_ = -1;
};

}  // namespace heed::examples
