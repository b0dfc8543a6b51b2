// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// Whether a file begins like a zip archive.
bool is_archive(std::string_view file);

/// The directory of a zip archive: where its records are. Read it before LibTorch's reader, which
/// allocates as much memory as a record claims to need.
class ZipDirectory {
 public:
  static constexpr size_t kMostCode = size_t{1} << 26;  ///< bytes of TorchScript code in one file

  struct Record {
    std::string_view name;
    Place place;
    bool stored;           // without compression
    size_t size;           // without compression
    uint64_t header = {};  // where its header begins, behind which `place` lies
  };

  /// Throws c10::ValueError when the directory or a record in it is invalid.
  explicit ZipDirectory(const Bytes& bytes);
  ZipDirectory(const ZipDirectory&) = delete;
  ZipDirectory& operator=(const ZipDirectory&) = delete;

  const Bytes& bytes() const { return bytes_; }
  /// The folder of the first record, such as "archive/", in which PyTorch's archives have all
  /// records.
  std::string_view top() const { return top_; }
  /// All records, by their names.
  const std::vector<Record>& records() const { return records_; }
  /// The record of this name; null if there is none.
  const Record* record(std::string_view name) const;
  /// The place of a record, if there is one of this name that is not compressed.
  std::optional<Place> find(std::string_view name) const;

  /// Throws c10::ValueError unless LibTorch's reader can read the archive's version. With another
  /// version, that reader leaks its memory.
  void check_version() const;

 private:
  void check_apart() const;

  Bytes bytes_;
  std::string entries_;  // the directory's bytes
  std::string_view top_;
  std::vector<Record> records_;
};

}  // namespace heed::detail
