// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heed::detail {

/// A file that appears under its path completely or not at all: data goes to a temporary file in
/// the same folder, which is renamed to the path when it is complete and on the disk. It then has
/// the mode of the file that it replaces; before, only its owner can access it.
class AtomicFile {
 public:
  /// Throws c10::ValueError when the path is not a file that can be replaced, or when the folder is
  /// not writable.
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Leaves the old file unchanged, unless `commit` has been called.
  ~AtomicFile();

  void write(std::string_view bytes);
  void commit();

 private:
  void check(bool done) const;

  std::string path_, temporary_;
  std::optional<unsigned> mode_;  // of the file that is replaced
  int file_ = -1;
};

}  // namespace heed::detail
