#include "weights/formats/bytes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace heed::detail {

struct Bytes::File {
  explicit File(int opened) : descriptor(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(descriptor); }

  int descriptor;
  mutable std::atomic<size_t> bytes_read = 0;
  mutable std::map<size_t, size_t> bools;  // the ends of ranges whose bytes are 0 or 1, by begin
};

namespace {

// Stays in a processor's cache, and is too little for LibTorch to wake its threads: where others
// use the processors too, a wait for them can take 10 ms.
constexpr size_t kPiece = size_t{1} << 16;

std::string last_error() { return std::generic_category().message(errno); }

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

/// The context of a storage without memory: where its bytes are.
struct Unread {
  Bytes bytes;
  size_t offset;
};

void forget(void* unread) { delete static_cast<Unread*>(unread); }

const Unread* unread_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return tensor.storage().data_ptr().cast_context<Unread>(&forget);
}

/// "a folder", unless the path names a regular file, or nothing.
std::optional<std::string> other_kind(const std::string& path) {
  using Type = std::filesystem::file_type;
  std::error_code error;  // a path that cannot be looked at is no file either
  switch (std::filesystem::status(path, error).type()) {
    case Type::directory:
      return "a folder";
    case Type::fifo:
      return "a pipe";
    case Type::socket:
      return "a socket";
    case Type::character:
    case Type::block:
      return "a device";
    default:
      return std::nullopt;
  }
}

/// The file may have been written to since `tensor_at` looked.
void read_checked(const Unread& unread, size_t at, void* to, size_t count, at::ScalarType dtype) {
  unread.bytes.read(unread.offset + at, to, count);
  HEED_CHECK(dtype != at::kBool || holds_bools({static_cast<const char*>(to), count}),
             "path ({}) must stay as it is while it is read; the bytes of a Bool tensor must be "
             "0 or 1",
             unread.bytes.path());
}

c10::Storage storage_of(size_t size) {
  return at::empty({static_cast<int64_t>(size)}, at::kByte).storage();
}

/// The runs of elements in which a view lies in the file, in the view's row-major order.
class Runs {
 public:
  explicit Runs(const at::Tensor& view) : view_(view), outer_(view.dim()) {
    while (outer_ > 0 && (view.size(outer_ - 1) == 1 || view.stride(outer_ - 1) == length_)) {
      length_ *= view.size(--outer_);
    }
  }

  /// The elements of one run.
  int64_t length() const { return length_; }

  /// Whether reading run by run is no slower than reading all that lies between them.
  bool are_long() const {
    constexpr int64_t kSector = 512;  // a disk reads no less
    return length_ == view_.numel() || length_ * view_.element_size() >= kSector;
  }

  /// The place of the view's element `index` in its storage.
  int64_t place(int64_t index) const {
    auto place = view_.storage_offset() + index % length_;
    auto run = index / length_;
    for (auto dim = outer_; dim-- > 0; run /= view_.size(dim)) {
      place += run % view_.size(dim) * view_.stride(dim);
    }
    return place;
  }

 private:
  const at::Tensor& view_;
  int64_t outer_;  // dims around the runs
  int64_t length_ = 1;
};

/// Reads elements [first, first + count) of a view, in row-major order.
void read_elements(const Unread& unread, const at::Tensor& view, int64_t first, int64_t count,
                   void* to) {
  const Runs runs(view);
  const auto width = view.element_size();
  auto* place = static_cast<char*>(to);
  while (count > 0) {
    const auto size = std::min(count, runs.length() - first % runs.length());
    const auto bytes = static_cast<size_t>(size) * width;
    read_checked(unread, static_cast<size_t>(runs.place(first)) * width, place, bytes,
                 view.scalar_type());
    place += bytes;
    first += size;
    count -= size;
  }
}

/// The dims of a tensor in the order of its memory, the last one innermost.
std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<int64_t> dims(static_cast<size_t>(tensor.dim()));
  std::iota(dims.begin(), dims.end(), int64_t{0});
  std::stable_sort(dims.begin(), dims.end(),
                   [&](auto a, auto b) { return tensor.stride(a) > tensor.stride(b); });
  return dims;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    result[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return result;
}

at::Tensor over(const c10::Storage& storage, at::ScalarType dtype, int64_t offset,
                at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::empty({0}, dtype).set_(storage, offset, sizes, strides);
}

}  // namespace

Bytes::Bytes(const std::string& path) {
  HEED_CHECK(path.find('\0') == std::string::npos, "path ({}) must not hold a NUL",
             path.substr(0, path.find('\0')));
  const auto kind = other_kind(path);
  HEED_CHECK(!kind, "path ({}) must name a file; it is {}", path, *kind);
  std::error_code error;  // a path that cannot be looked at is no file either
  HEED_CHECK(std::filesystem::is_regular_file(path, error), "path ({}) must name an existing file",
             path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  HEED_CHECK(descriptor >= 0, "path ({}) must be readable; {}", path, last_error());
  file_ = std::make_shared<File>(descriptor);
  struct stat found {};
  HEED_CHECK(::fstat(descriptor, &found) == 0, "path ({}) must be readable; {}", path,
             last_error());
  place_.size = static_cast<size_t>(found.st_size);
  path_ = std::make_shared<std::string>(path);
}

Bytes Bytes::part(const Place& place, const std::string& name) const {
  auto part = *this;
  part.place_ = {place_.offset + place.offset, place.size};
  part.path_ = std::make_shared<std::string>(path() + ", " + name);
  return part;
}

size_t Bytes::bytes_read() const { return file_->bytes_read; }

void Bytes::read(size_t at, void* to, size_t count) const {
  constexpr size_t kMost = size_t{1} << 30;  // some systems refuse more at once
  auto* place = static_cast<char*>(to);
  while (count > 0) {
    const auto got = ::pread(file_->descriptor, place, std::min(count, kMost),
                             static_cast<off_t>(place_.offset + at));
    if (got < 0 && errno == EINTR) continue;
    HEED_CHECK(got >= 0, "path ({}) must be readable; {}", path(), last_error());
    HEED_CHECK(got > 0, "path ({}) must not be cut short while it is read; byte {} of {} is gone",
               path(), at, size());
    file_->bytes_read += static_cast<size_t>(got);
    place += got;
    at += static_cast<size_t>(got);
    count -= static_cast<size_t>(got);
  }
}

std::string Bytes::text(size_t at, size_t count) const {
  std::string bytes(std::min(count, size() - std::min(at, size())), '\0');
  read(at, bytes.data(), bytes.size());
  return bytes;
}

bool Bytes::hold_bools(size_t at, size_t count) const {
  auto& known = file_->bools;
  const auto end = place_.offset + at + count;
  auto begin = place_.offset + at;  // of what is not known yet
  while (begin < end) {
    auto next = known.upper_bound(begin);
    if (next != known.begin() && std::prev(next)->second > begin) {
      begin = std::prev(next)->second;
      continue;
    }
    const auto until = next == known.end() ? end : std::min(end, next->first);
    const auto piece = std::min(kPiece, until - begin);
    if (!holds_bools(text(begin - place_.offset, piece))) return false;
    const bool goes_on = next != known.begin() && std::prev(next)->second == begin;
    const auto range = goes_on ? std::prev(next) : known.emplace_hint(next, begin, begin);
    range->second = begin + piece;
    if (next != known.end() && next->first == range->second) {
      range->second = next->second;
      known.erase(next);
    }
  }
  return true;
}

size_t memory_limit(const Bytes& bytes) {
  constexpr size_t kLeast = size_t{1} << 28;
  return kLeast + 8 * bytes.size();
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
  const auto size = span(extent);
  HEED_CHECK(extent.dtype != at::kBool || bytes.hold_bools(extent.offset, size),
             "path ({}) must be a sound {} file; {}: the bytes of a Bool tensor must be 0 or 1",
             bytes.path(), format, place);
  at::DataPtr none(nullptr, new Unread{bytes, extent.offset}, &forget, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(none),
                       /*allocator=*/nullptr, /*resizable=*/false);
  // A file may have very many tensors: LibTorch's dispatcher is not asked for them.
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(extent.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(extent.sizes, extent.strides);
  return tensor;
}

at::Tensor with_values(const at::Tensor& tensor) {
  const auto* unread = unread_of(tensor);
  if (unread == nullptr) return tensor;
  const auto dtype = tensor.scalar_type();
  const auto order = memory_order(tensor);
  const auto rows = tensor.permute(order);
  if (Runs(rows).are_long()) {
    const auto storage = storage_of(tensor.nbytes());
    read_elements(*unread, rows, 0, rows.numel(), storage.mutable_data());
    return over(storage, dtype, 0, rows.sizes(), c10::contiguous_strides(rows.sizes()))
        .permute(inverse(order));
  }
  const auto storage = storage_of(span({0, dtype, tensor.sizes(), tensor.strides()}));
  const auto first = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  read_checked(*unread, first, storage.mutable_data(), storage.nbytes(), dtype);
  return over(storage, dtype, 0, tensor.sizes(), tensor.strides());
}

void copy_values(const at::Tensor& from, const at::Tensor& to) {
  const auto* unread = unread_of(from);
  const bool lazy = to.is_conj() || to.is_neg();
  if (unread == nullptr || !Runs(from).are_long() || !to.is_contiguous() || lazy) {
    to.copy_(with_values(from));
    return;
  }
  const auto count = from.numel();
  if (to.is_cpu() && to.scalar_type() == from.scalar_type() && to.scalar_type() != at::kBool) {
    read_elements(*unread, from, 0, count, to.mutable_data_ptr());
    to.unsafeGetTensorImpl()->bump_version();  // as copy_ does, for autograd
    return;
  }
  const auto most = static_cast<int64_t>(kPiece / from.element_size());
  const auto piece = at::empty({std::min(count, most)}, from.scalar_type());
  const auto elements = to.view(-1);
  for (int64_t at = 0; at < count; at += most) {
    const auto size = std::min(most, count - at);
    read_elements(*unread, from, at, size, piece.mutable_data_ptr());
    elements.narrow(0, at, size).copy_(piece.narrow(0, 0, size));
  }
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
