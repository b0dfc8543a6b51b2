#pragma once

#include <string>

namespace heed::examples {

/// While it holds a folder, no other process can.
class FolderLock {
 public:
  FolderLock() = default;
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Returns false where another process holds the folder. One that is missing, or that cannot be
  /// locked, is left to what reads and writes there.
  bool take(const std::string& folder);

 private:
  int file_ = -1;
};

}  // namespace heed::examples
