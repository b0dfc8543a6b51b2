#include "weights/formats/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace heed::detail {

namespace {

/// The file itself, where the path is a link to it.
std::string resolved(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(resolved(path)) {
  const std::filesystem::path target(path_);
  HEED_CHECK(target.has_filename() && !std::filesystem::is_directory(target),
             "path ({}) must name a file", path);
  // The number tells apart the files of threads and of processes that were killed.
  for (int number = 0; file_ < 0; ++number) {
    const auto name = fmt::format(".{}.{}.{}", target.filename().string(), ::getpid(), number);
    temporary_ = (target.parent_path() / name).string();
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    check(file_ >= 0 || errno == EEXIST);
  }
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    check(written >= 0);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  check(::fsync(file_) == 0);
  check(std::rename(temporary_.c_str(), path_.c_str()) == 0);
  ::close(file_);
  file_ = -1;
  // The new name is on the disk once its folder is; some file systems cannot say so.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

void AtomicFile::check(bool done) const {
  if (done) return;
  const auto reason = std::generic_category().message(errno);
  HEED_CHECK(false, "path ({}) must be writable; {}", path_, reason);
}

}  // namespace heed::detail
