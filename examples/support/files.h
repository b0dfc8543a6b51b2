// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fstream>
#include <string>
#include <string_view>

namespace heed::examples {

/// Opens a file for reading. Throws std::runtime_error when there is no such file, or when it is a
/// folder; the error names the program that writes the file, if there is one.
std::ifstream open_input(const std::string& path, const std::string& writer = "");

/// The same, but throws when it is a device, a pipe or a socket, too: to open those may wait for
/// ever.
std::ifstream open_file(const std::string& path);

/// Whether there is a file or a folder.
bool exists(const std::string& path);

/// Throws std::runtime_error when `path`, unless it is empty, cannot be written. Call it before
/// long work whose result goes there. It creates nothing, so that a killed process leaves no empty
/// file.
void check_writable(const std::string& path);

/// Writes a file completely or not at all: if the process is killed or the disk is full, the old
/// file stays. Data goes to a new file beside it, which is then renamed; a link is followed. Throws
/// std::runtime_error when it cannot be written, or when it is no file.
void write_atomically(const std::string& path, std::string_view bytes);

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
