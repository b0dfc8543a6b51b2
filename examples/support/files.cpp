// SPDX-License-Identifier: BSD-3-Clause
#include "files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace heed::examples {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what, const std::string& path,
                         const std::string& reason) {
  throw std::runtime_error("cannot " + what + " " + path + ": " + reason);
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// The file itself, where the path is a link to it, there or not.
fs::path resolved(fs::path path) {
  constexpr int kMostLinks = 40;  // Linux's own limit
  std::error_code error;          // what cannot be looked at cannot be opened either
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

/// A new file beside the target, under a name that nobody can have planted.
int open_beside(const fs::path& target, mode_t mode, std::string& name) {
  constexpr size_t kNameBytes = 200;  // a temporary name that a folder takes
  for (int number = 0;; ++number) {
    const auto file = "." + target.filename().string().substr(0, kNameBytes) + "." +
                      std::to_string(::getpid()) + "." + std::to_string(number);
    name = target.parent_path() / file;
    const int opened = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (opened >= 0 || errno != EEXIST) return opened;
  }
}

/// A new name is on the disk once its folder is; some file systems cannot say so.
void sync_folder(const fs::path& path) {
  const int file = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

}  // namespace

std::ifstream open_input(const std::string& path, const std::string& writer) {
  std::ifstream file(path, std::ios::binary);
  int reason = file ? 0 : errno;
  std::error_code ignored;
  if (file && fs::is_directory(path, ignored)) reason = EISDIR;
  const auto hint = writer.empty() ? "" : " (" + writer + " writes it)";
  if (reason != 0) refuse("read", path, std::strerror(reason) + hint);
  return file;
}

std::ifstream open_file(const std::string& path) {
  std::error_code error;
  const auto type = fs::status(path, error).type();
  using Type = fs::file_type;
  if (type == Type::fifo || type == Type::character || type == Type::block ||
      type == Type::socket) {
    refuse("read", path, "it is a device, a pipe or a socket");
  }
  return open_input(path);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void check_writable(const std::string& path) {
  if (path.empty()) return;
  int reason = ::access(folder_of(path).c_str(), W_OK) == 0 ? 0 : errno;
  if (fs::is_directory(path)) reason = EISDIR;
  if (reason != 0) refuse("write", path, std::strerror(reason));
}

void write_atomically(const std::string& path, std::string_view bytes) {
  const auto target = resolved(path);
  struct stat old {};
  const bool replaces = ::stat(target.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) {
    refuse("write", path, "it is a folder, a device or a pipe");
  }
  // A file that is replaced keeps its mode. Until then only its owner can read the new one.
  std::string temporary;
  const int file = open_beside(target, replaces ? 0600 : 0666, temporary);
  bool written = file >= 0 && write_all(file, bytes) &&
                 (!replaces || ::fchmod(file, old.st_mode & 07777) == 0) && ::fsync(file) == 0;
  int reason = errno;
  if (file >= 0) ::close(file);
  if (written && std::rename(temporary.c_str(), target.c_str()) != 0) {
    written = false;
    reason = errno;
  }
  if (!written) {
    if (file >= 0) ::unlink(temporary.c_str());
    refuse("write", path, std::strerror(reason));
  }
  sync_folder(target);
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

bool FolderLock::take(const std::string& folder) {
  // The folder itself: no file is left there, and the lock ends with the process.
  file_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

}  // namespace heed::examples
