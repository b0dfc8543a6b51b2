#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace heed::detail {

inline constexpr size_t kMostDims = 64;  // LibTorch's operators take no more

/// A file that is open for reading; copies share it. It is read, not mapped: where a mapped file is
/// cut short, whoever looks at its end is killed by SIGBUS.
class Bytes {
 public:
  /// Throws c10::ValueError when there is no such file or it cannot be read.
  explicit Bytes(const std::string& path);

  const std::string& path() const;  ///< for errors
  size_t size() const;              ///< when it was opened

  /// Copies bytes that lie in the file. Throws c10::ValueError when they do not any more.
  void read(size_t at, void* to, size_t count) const;
  /// Of `count` bytes from `at` on, those that lie in the file.
  std::string text(size_t at, size_t count) const;

 private:
  struct File;
  std::shared_ptr<const File> file_;
};

/// Where a tensor lies in a file. Strides count elements.
struct Extent {
  size_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  at::IntArrayRef sizes, strides;
};

/// The elements of a tensor of these sizes, if the bytes they take can be counted.
std::optional<int64_t> element_count(at::IntArrayRef sizes);

/// A tensor whose values stay in the file: it and its views have shapes, and `with_values` and
/// `copy_values` read them. The caller has checked that the extent lies in the file; `format` and
/// `place` name the tensor if its values cannot be.
at::Tensor tensor_at(const Bytes& bytes, const Extent& extent, const char* format,
                     const std::string& place);

/// The tensor, its values read where they are in a file.
at::Tensor with_values(const at::Tensor& tensor);

/// to.copy_(from), wherever the values of `from` are; by way of little memory where the layouts
/// allow it.
void copy_values(const at::Tensor& from, const at::Tensor& to);

/// A name from a file as an error shows it: in quotes, without control characters, not too long.
std::string in_quotes(std::string_view name);

}  // namespace heed::detail

/// Throws c10::ValueError unless the file is what it seems to be:
/// "path (w.safetensors) must be a sound safetensors file; header size (9) ...".
#define HEED_CHECK_FILE(condition, bytes, format, place, ...)                                \
  HEED_CHECK(condition, "path ({}) must be a sound " format " file; " place, (bytes).path(), \
             __VA_ARGS__)
