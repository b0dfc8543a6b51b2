// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/bytes.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <istream>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weights/formats/other_files.h"
#include "weights/formats/weight_file.h"

namespace heed::detail {

namespace {

using Pieces = std::map<size_t, std::string>;  // of a stream, by where they begin in it

}  // namespace

struct Bytes::File {
  static constexpr int kNone = -1;

  explicit File(int opened) : descriptor(opened) {}
  explicit File(Pieces stream) : descriptor(kNone), pieces(std::move(stream)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor != kNone) ::close(descriptor);
  }

  const int descriptor;  // kNone for a stream
  const Pieces pieces;
  mutable std::atomic<size_t> bytes_read = 0;
  mutable std::map<size_t, size_t> bools;  // the ends of ranges whose bytes are 0 or 1, by begin
};

namespace {

std::string last_error() { return std::generic_category().message(errno); }

/// Names the weights in a folder, if it has some.
std::string weights_note(const std::string& folder) {
  const auto weights = weights_in(folder);
  return weights ? ", whose weights are " + *weights : "";
}

/// The kind of an object that is no regular file, such as "a folder"; none for a regular file, or
/// if nothing is there.
std::optional<std::string> other_kind(const std::string& path) {
  using Type = std::filesystem::file_type;
  std::error_code error;  // a path that cannot be looked at is no file either
  switch (std::filesystem::status(path, error).type()) {
    case Type::directory:
      return "a folder" + weights_note(path);
    case Type::fifo:
      return "a pipe, which load_weights reads as a std::ifstream";
    case Type::socket:
      return "a socket";
    case Type::character:
    case Type::block:
      return "a device";
    default:
      return std::nullopt;
  }
}

/// Reads a stream to its end, or only its first piece if that begins no weights: a stream may be
/// endless. Its buffer is read directly, so that the stream throws nothing of its own.
Pieces rest_of(std::istream& stream) {
  constexpr size_t kMost = size_t{1} << 24;
  constexpr auto kAtEnd = "stream must not be at its end";
  HEED_CHECK(!stream.eof(), kAtEnd);
  HEED_CHECK(
      !stream.fail(),
      "stream must be readable; it has failed before, as that of a file that does not exist");
  Pieces pieces;
  size_t begin = 0;
  for (auto size = kPiece;; size = std::min(2 * size, kMost)) {
    std::string piece(size, '\0');
    try {
      piece.resize(static_cast<size_t>(
          stream.rdbuf()->sgetn(piece.data(), static_cast<std::streamsize>(size))));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      HEED_CHECK(false, "stream must be readable; it failed: {}", error.what());
    }
    const auto got = piece.size();
    HEED_CHECK(begin + got > 0, kAtEnd);
    if (got < size) piece.shrink_to_fit();
    const bool may_go_on = got == size && (begin > 0 || holds_weights(piece));
    pieces.emplace(begin, std::move(piece));
    if (!may_go_on) return pieces;
    begin += got;
  }
}

/// Copies bytes of a stream from `at` on.
void copy_from(const Pieces& pieces, size_t at, char* to, size_t count) {
  while (count > 0) {
    const auto& [begin, piece] = *std::prev(pieces.upper_bound(at));
    const auto there = piece.copy(to, count, at - begin);
    to += there;
    at += there;
    count -= there;
  }
}

}  // namespace

bool holds_bools(std::string_view bytes) {
  return bytes.find_first_not_of(std::string_view("\0\1", 2)) == std::string_view::npos;
}

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

Bytes::Bytes(std::istream& stream) : path_(std::make_shared<std::string>()) {
  auto pieces = rest_of(stream);
  place_.size = pieces.rbegin()->first + pieces.rbegin()->second.size();
  file_ = std::make_shared<File>(std::move(pieces));
  file_->bytes_read = place_.size;
}

bool Bytes::is_file() const { return file_->descriptor != File::kNone; }

std::string Bytes::source() const {
  return is_file() ? fmt::format("path ({})", path()) : "stream" + path();
}

Bytes Bytes::part(const Place& place, const std::string& name) const {
  auto part = *this;
  part.place_ = {place_.offset + place.offset, place.size};
  part.path_ = std::make_shared<std::string>(path() + ", " + name);
  return part;
}

size_t Bytes::bytes_read() const { return file_->bytes_read; }

bool Bytes::is_at(size_t at, const Bytes& other, size_t other_at) const {
  return file_ == other.file_ && place_.offset + at == other.place_.offset + other_at;
}

void Bytes::read(size_t at, void* to, size_t count) const {
  constexpr size_t kMost = size_t{1} << 30;  // some systems refuse more at once
  auto* place = static_cast<char*>(to);
  if (!is_file()) return copy_from(file_->pieces, place_.offset + at, place, count);
  while (count > 0) {
    const auto got = ::pread(file_->descriptor, place, std::min(count, kMost),
                             static_cast<off_t>(place_.offset + at));
    if (got < 0 && errno == EINTR) continue;
    HEED_CHECK(got >= 0, "{} must be readable; {}", source(), last_error());
    HEED_CHECK(got > 0, "{} must not be cut short while it is read; byte {} of {} is gone",
               source(), at, size());
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
  auto begin = place_.offset + at;  // where the bytes begin that are not known yet
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
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;  // of the widest dtype
  int64_t count = 1;  // product of the sizes above 0, from which strides are made
  bool empty = false;
  for (const auto size : sizes) {
    if (size < 0 || (size > 0 && count > kMost / size)) return std::nullopt;
    count *= size == 0 ? 1 : size;
    empty = empty || size == 0;
  }
  return empty ? 0 : count;
}

std::string in_quotes(std::string_view name, size_t most) {
  std::string text = "\"";
  for (const char c : name.substr(0, most)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f || c == '"' || c == '\\') {
      text += fmt::format("\\x{:02x}", code);
    } else {
      text += c;
    }
  }
  return text + (name.size() > most ? "...\"" : "\"");
}

}  // namespace heed::detail
