#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace heed::detail {

inline constexpr size_t kMostDims = 64;  // LibTorch's operators take no more

/// A file's bytes, mapped into memory. Tensors made of them share the mapping and keep it alive.
struct Bytes {
  std::string path;  ///< for errors
  c10::Storage storage;

  std::string_view view() const {
    return {static_cast<const char*>(storage.data()), storage.nbytes()};
  }
  size_t size() const { return storage.nbytes(); }
};

/// Throws c10::ValueError when there is no such file or it cannot be read.
Bytes map_file(const std::string& path);

/// Where a tensor lies in a file. Strides count elements.
struct Extent {
  size_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  at::IntArrayRef sizes, strides;
};

/// The elements of a tensor of these sizes, if the bytes they take can be counted.
std::optional<int64_t> element_count(at::IntArrayRef sizes);

/// A tensor in the file's own memory; in a copy where its place in the file is not aligned. The
/// caller has checked that the extent lies in the file; `format` and `place` name the tensor if its
/// values cannot be.
at::Tensor tensor_at(const Bytes& bytes, const Extent& extent, const char* format,
                     const std::string& place);

/// A name from a file as an error shows it: in quotes, without control characters, not too long.
std::string in_quotes(std::string_view name);

}  // namespace heed::detail

/// Throws c10::ValueError unless the file is what it seems to be:
/// "path (w.safetensors) must be a sound safetensors file; header size (9) ...".
#define HEED_CHECK_FILE(condition, bytes, format, place, ...)                              \
  HEED_CHECK(condition, "path ({}) must be a sound " format " file; " place, (bytes).path, \
             __VA_ARGS__)
