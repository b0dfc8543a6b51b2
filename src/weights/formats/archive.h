#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "weights/formats/bytes.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}  // namespace caffe2::serialize

namespace heed::detail {

/// Whether a file begins like a zip archive.
bool is_archive(std::string_view file);

/// The most memory that reading a file may take besides the file itself. No valid file needs more,
/// and a malicious one gets no more.
size_t memory_limit(const Bytes& bytes);

/// Where a part of a file begins, and how long it is.
struct Place {
  size_t offset, size;
};

/// The zip archive in which PyTorch stores weights: records by name, most of them not compressed.
class Archive {
 public:
  /// Throws c10::ValueError when the archive is invalid.
  explicit Archive(const Bytes& bytes);
  ~Archive();

  const Bytes& bytes() const { return bytes_; }
  bool has(const std::string& name) const;
  /// The position of an uncompressed record in the file.
  Place place(const std::string& name) const;
  /// Reads an uncompressed record.
  std::string stored(const std::string& name) const;
  /// Reads a record, which may be compressed.
  std::string text(const std::string& name) const;

 private:
  template <typename Call>
  auto guarded(Call&& call) const;

  class Adapter;

  Bytes bytes_;
  std::shared_ptr<Adapter> adapter_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

}  // namespace heed::detail
