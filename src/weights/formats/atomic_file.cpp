// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/error.h"

namespace heed::detail {

namespace {

/// Follows links: returns the path of the file itself, whether it exists or not.
std::filesystem::path resolved(const std::string& path) {
  constexpr int kMostLinks = 40;  // Linux's own limit
  HEED_CHECK(path.find('\0') == std::string::npos, "path ({}) must not hold a NUL",
             path.substr(0, path.find('\0')));
  std::filesystem::path target(path);
  std::error_code error;  // ignored: opening the file reports it
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    HEED_CHECK(links < kMostLinks, "path ({}) must not be a link that leads to itself", path);
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  }
  return target;
}

/// The mode of an existing file; none if there is no file.
std::optional<mode_t> mode_of(const std::filesystem::path& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return found.st_mode;
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(resolved(path).string()) {
  constexpr size_t kNameCharacters = 200;  // so that the folder takes the temporary name
  const std::filesystem::path target(path_);
  const auto mode = mode_of(target);
  if (mode) mode_ = *mode & 07777;
  const bool is_folder = mode && S_ISDIR(*mode);
  HEED_CHECK(target.has_filename() && !is_folder, "path ({}) must name a file", path);
  HEED_CHECK(!mode || S_ISREG(*mode),
             "path ({}) must name a file: a device, a pipe or a socket would be replaced", path);
  // The number tells apart the files of threads and of processes that were killed.
  for (int number = 0; file_ < 0; ++number) {
    const auto name = fmt::format(
        ".{}.{}.{}", target.filename().string().substr(0, kNameCharacters), ::getpid(), number);
    temporary_ = (target.parent_path() / name).string();
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode ? 0600 : 0666);
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
  check(!mode_ || ::fchmod(file_, *mode_) == 0);
  check(::fsync(file_) == 0);
  check(std::rename(temporary_.c_str(), path_.c_str()) == 0);
  ::close(file_);
  file_ = -1;
  // The rename is on the disk only once its folder is. Some file systems cannot sync a folder, so
  // errors are ignored.
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
