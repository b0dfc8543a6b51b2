#include "folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace heed::examples {

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

bool FolderLock::take(const std::string& folder) {
  // The folder itself: no file is left there, and the lock ends with the process.
  file_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

}  // namespace heed::examples
