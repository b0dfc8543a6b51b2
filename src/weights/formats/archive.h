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

/// Whether a file begins as a zip archive does.
bool is_archive(std::string_view file);

/// The most memory that reading a file may take beside the file: no file needs more, and a hostile
/// one gets no more.
size_t memory_limit(const Bytes& bytes);

/// Where a part of a file begins, and how long it is.
struct Place {
  size_t offset, size;
};

/// The zip archive that PyTorch keeps weights in: records by name, most of them as they are.
class Archive {
 public:
  /// Throws c10::ValueError when the archive is not sound.
  explicit Archive(const Bytes& bytes);
  ~Archive();

  const Bytes& bytes() const { return bytes_; }
  bool has(const std::string& name) const;
  /// Where a record that is not compressed lies in the file.
  Place place(const std::string& name) const;
  /// A record that is not compressed.
  std::string stored(const std::string& name) const;
  /// A record, which may be compressed.
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
