// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "weights/formats/bytes.h"
#include "weights/formats/zip_directory.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}  // namespace caffe2::serialize

namespace heed::detail {

/// Throws c10::ValueError unless the record "byteorder" of an archive says that numbers in it are
/// as this machine has them.
void check_byte_order(const Bytes& bytes, const std::string& order);

/// The zip archive in which PyTorch stores weights: records by name, most of them not compressed.
class Archive {
 public:
  /// Shares `directory`. Throws c10::ValueError when the archive is invalid.
  explicit Archive(const ZipDirectory& directory);
  ~Archive();

  const Bytes& bytes() const { return bytes_; }
  bool has(std::string_view name) const;
  /// The position of an uncompressed record in the file.
  Place place(std::string_view name) const;
  /// Reads an uncompressed record.
  std::string stored(std::string_view name) const;
  /// Reads a record, which may be compressed.
  std::string text(std::string_view name) const;

 private:
  template <typename Call>
  auto guarded(Call&& call) const;

  class Adapter;

  const ZipDirectory::Record* find(std::string_view name) const;
  std::string inflated(const std::string& name) const;

  const ZipDirectory& directory_;
  Bytes bytes_;
  mutable std::shared_ptr<Adapter> adapter_;                                // the reader's input
  mutable std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;  // null until needed
};

}  // namespace heed::detail
