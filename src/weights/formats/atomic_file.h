#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heed::detail {

/// A file that appears under its path whole or not at all: what is written goes to a temporary file
/// in the same folder, which takes the path's place when it is complete and on the disk. The mode
/// of what was there stays; until then the temporary file is its owner's alone.
class AtomicFile {
 public:
  /// Throws c10::ValueError when the path names no file that could be replaced, or the folder
  /// cannot be written to.
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Leaves what was there before, unless `commit` has been called.
  ~AtomicFile();

  void write(std::string_view bytes);
  void commit();

 private:
  void check(bool done) const;

  std::string path_, temporary_;
  std::optional<unsigned> mode_;  // of what was there
  int file_ = -1;
};

}  // namespace heed::detail
