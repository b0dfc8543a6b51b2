// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace heed::detail {

inline constexpr size_t kMostDims = 64;  // LibTorch's operators take no more

/// How much is read at once: it stays in a processor's cache, and is too little for LibTorch to
/// wake its threads. Where others use the processors too, a wait for them can take 10 ms.
inline constexpr size_t kPiece = size_t{1} << 16;

/// Whether each byte is 0 or 1: a bool that is neither has no meaning in C++.
bool holds_bools(std::string_view bytes);

/// Where a part of a file begins, and how long it is.
struct Place {
  size_t offset, size;
};

/// A file that is open for reading, the rest of a stream, or a part of either; copies share it. A
/// file is read, not mapped: if a mapped file is cut short, access to its end kills the process
/// with SIGBUS.
class Bytes {
 public:
  /// Throws c10::ValueError when the file does not exist or cannot be read.
  explicit Bytes(const std::string& path);
  /// Reads a stream to its end, into memory; only its first bytes if they begin no weights. Throws
  /// c10::ValueError when it fails.
  explicit Bytes(std::istream& stream);

  /// A part of these bytes that is read like a file of its own. The caller has checked that it lies
  /// in them.
  Bytes part(const Place& place, const std::string& name) const;

  /// The bytes' origin as errors name it: "path (w.pt)" or "stream"; a part's name follows.
  std::string source() const;
  const std::string& path() const { return *path_; }  ///< empty for a stream; a part's name follows
  bool is_file() const;                               ///< no stream
  size_t size() const { return place_.size; }         ///< the size when the file was opened

  size_t bytes_read() const;  ///< by all copies, of the whole file, so far
  /// Whether byte `at` is byte `other_at` of `other`, in one open file.
  bool is_at(size_t at, const Bytes& other, size_t other_at) const;

  /// Copies these bytes. Throws c10::ValueError when the file no longer has them.
  void read(size_t at, void* to, size_t count) const;
  /// Whether each of these bytes is 0 or 1. No byte of the file is read twice for it.
  bool hold_bools(size_t at, size_t count) const;
  /// Returns up to `count` bytes from `at` on, as many as there are.
  std::string text(size_t at, size_t count) const;

 private:
  struct File;
  std::shared_ptr<const File> file_;
  Place place_{};
  std::shared_ptr<const std::string> path_;
};

/// The most memory that reading a file may take besides the file itself. No valid file needs more,
/// and a malicious one gets no more.
size_t memory_limit(const Bytes& bytes);

/// The number of elements of a tensor with these sizes, if their bytes do not overflow.
std::optional<int64_t> element_count(at::IntArrayRef sizes);

/// Whether a text of a file begins with `start`.
inline bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

inline bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// A name from a file as errors show it: in quotes, without control characters, and with `most`
/// characters at most.
std::string in_quotes(std::string_view name, size_t most = 100);

}  // namespace heed::detail

/// Throws c10::ValueError unless the file is a valid file of its format:
/// "path (w.safetensors) must be a sound safetensors file; header size (9) ...".
#define HEED_CHECK_FILE(condition, bytes, format, place, ...) \
  HEED_CHECK(condition, "{} must be a sound " format " file; " place, (bytes).source(), __VA_ARGS__)
