#include "weights/formats/bytes.h"

#include <ATen/MapAllocator.h>
#include <ATen/ops/empty.h>

#include <filesystem>
#include <limits>

namespace heed::detail {

namespace {

c10::Storage storage_of(at::DataPtr data, size_t size) {
  return {c10::Storage::use_byte_size_t(), size, std::move(data), /*allocator=*/nullptr,
          /*resizable=*/false};
}

/// Bytes from the first element to the last.
size_t span(const Extent& extent) {
  int64_t last = 0;
  for (size_t i = 0; i < extent.sizes.size(); ++i) {
    if (extent.sizes[i] == 0) return 0;
    last += (extent.sizes[i] - 1) * extent.strides[i];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(extent.dtype);
}

/// A bool that is neither 0 nor 1 has no meaning in C++.
bool holds_bools(std::string_view bytes) {
  return bytes.find_first_not_of(std::string_view("\0\1", 2)) == std::string_view::npos;
}

}  // namespace

Bytes map_file(const std::string& path) {
  HEED_CHECK(path.find('\0') == std::string::npos, "path ({}) must not hold a NUL",
             path.substr(0, path.find('\0')));
  std::error_code error;  // a path that cannot be looked at is no file either
  HEED_CHECK(std::filesystem::is_regular_file(path, error), "path ({}) must name an existing file",
             path);
  const auto size = std::filesystem::file_size(path, error);
  if (size == 0) return {path, storage_of({}, 0)};
  try {
    size_t mapped = 0;
    auto data = at::MapAllocator::makeDataPtr(path, /*flags=*/0, size, &mapped);
    return {path, storage_of(std::move(data), mapped)};
  } catch (const c10::Error& error) {
    HEED_CHECK(false, "path ({}) must be readable; {}", path, error.what_without_backtrace());
  }
}

std::optional<int64_t> element_count(at::IntArrayRef sizes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;  // of the widest elements
  int64_t count = 1;  // of the sizes that are not 0: strides are computed from those
  bool empty = false;
  for (const auto size : sizes) {
    if (size < 0 || (size > 0 && count > kMost / size)) return std::nullopt;
    count *= size == 0 ? 1 : size;
    empty = empty || size == 0;
  }
  return empty ? 0 : count;
}

at::Tensor tensor_at(const Bytes& bytes, const Extent& extent, const char* format,
                     const std::string& place) {
  const auto width = c10::elementSize(extent.dtype);
  const auto data = bytes.view().substr(extent.offset, span(extent));
  HEED_CHECK(extent.dtype != at::kBool || holds_bools(data),
             "path ({}) must be a sound {} file; {}: the bytes of a Bool tensor must be 0 "
             "or 1",
             bytes.path, format, place);
  auto storage = bytes.storage;
  auto first = extent.offset / width;
  if (extent.offset % width != 0) {
    storage = at::empty({static_cast<int64_t>(data.size())}, at::kByte).storage();
    data.copy(static_cast<char*>(storage.mutable_data()), data.size());  // no data has no address
    first = 0;
  }
  const auto tensor = at::empty({0}, extent.dtype);
  return tensor.set_(storage, static_cast<int64_t>(first), extent.sizes, extent.strides);
}

std::string in_quotes(std::string_view name) {
  constexpr size_t kMost = 100;
  std::string text = "\"";
  for (const char c : name.substr(0, kMost)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f || c == '"' || c == '\\') {
      text += fmt::format("\\x{:02x}", code);
    } else {
      text += c;
    }
  }
  return text + (name.size() > kMost ? "...\"" : "\"");
}

}  // namespace heed::detail
