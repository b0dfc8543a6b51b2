// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/zip_directory.h"

#include <caffe2/serialize/versions.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "weights/formats/other_files.h"

#define HEED_CHECK_ZIP(condition, place, ...) \
  HEED_CHECK_FILE(condition, bytes_, "PyTorch", place, __VA_ARGS__)

namespace heed::detail {

namespace {

// PKWARE's APPNOTE.TXT, sections 4.3.12 to 4.3.16: sizes of the fixed parts and places in them.
constexpr std::string_view kEndSignature("PK\5\6", 4);
constexpr std::string_view kEnd64Signature("PK\6\6", 4);
constexpr std::string_view kLocator64Signature("PK\6\7", 4);
constexpr std::string_view kEntrySignature("PK\1\2", 4);
constexpr std::string_view kLocalSignature("PK\3\4", 4);
constexpr size_t kEndSize = 22, kEnd64Size = 56, kLocator64Size = 20, kEntrySize = 46;
constexpr size_t kLocalSize = 30;
constexpr uint64_t kIn64 = 0xffffffff;       // the value is in the 64-bit field
constexpr uint64_t kPlainFlags = 0x080e;     // compression level, sizes after the data, UTF-8
constexpr uint64_t kFolderAttribute = 0x10;  // MS-DOS's
constexpr uint16_t kStored = 0, kDeflated = 8;

/// Reads the end of the archive, and then the directory that it leads to.
class Directory {
 public:
  explicit Directory(const Bytes& bytes) : bytes_(bytes) {
    // A comment of up to 65,535 bytes may follow the end record, and before it may stand the
    // locator of a 64-bit end record.
    constexpr size_t kLongestTail = kLocator64Size + kEndSize + 0xffff;
    const auto tail_size = std::min(bytes.size(), kLongestTail);
    const auto tail_begin = bytes.size() - tail_size;
    const auto tail = bytes.text(tail_begin, tail_size);
    const auto end = tail.rfind(kEndSignature);
    HEED_CHECK_ZIP(end != std::string::npos && tail.size() - end >= kEndSize,
                   "it must end with a zip archive's directory (size {})", bytes.size());
    count_ = number<uint16_t>(tail, end + 10);
    size_ = number<uint32_t>(tail, end + 12);
    begin_ = number<uint32_t>(tail, end + 16);
    auto after = tail_begin + end;
    if (end >= kLocator64Size && tail.compare(end - kLocator64Size, 4, kLocator64Signature) == 0) {
      const auto locator = after - kLocator64Size;
      after = number<uint64_t>(tail, end - kLocator64Size + 8);
      const bool fits = locator >= kEnd64Size && after <= locator - kEnd64Size;
      const auto end64 = fits ? bytes.text(after, kEnd64Size) : "";
      HEED_CHECK_ZIP(begins_with(end64, kEnd64Signature),
                     "zip directory: its 64-bit end must be at {}", after);
      count_ = number<uint64_t>(end64, 32);
      size_ = number<uint64_t>(end64, 40);
      begin_ = number<uint64_t>(end64, 48);
    }
    HEED_CHECK_ZIP(begin_ <= after && size_ == after - begin_,
                   "zip directory: its place ({}, {} bytes) must end at {}", begin_, size_, after);
    HEED_CHECK_ZIP(count_ >= 1 && count_ <= size_ / kEntrySize,
                   "zip directory: its count ({}) must fit its {} bytes", count_, size_);
  }

  std::string entries() const { return bytes_.text(begin_, size_); }

  /// Calls `visit` with each of the entries `rest`, its name and its extra field, which point into
  /// them.
  template <typename Visit>
  void for_each(std::string_view rest, const Visit& visit) const {
    for (uint64_t i = 0; i < count_; ++i) {
      const auto at = begin_ + size_ - rest.size();
      HEED_CHECK_ZIP(rest.size() >= kEntrySize && begins_with(rest, kEntrySignature),
                     "zip directory: an entry must be at {}", at);
      const auto name_size = number<uint16_t>(rest, 28);
      const auto extra_size = number<uint16_t>(rest, 30);
      const auto whole = kEntrySize + name_size + extra_size + number<uint16_t>(rest, 32);
      HEED_CHECK_ZIP(rest.size() >= whole,
                     "zip directory: the entry at {} ({} bytes) must end before {}", at, whole,
                     begin_ + size_);
      visit(rest, rest.substr(kEntrySize, name_size),
            rest.substr(kEntrySize + name_size, extra_size));
      rest.remove_prefix(whole);
    }
  }

  /// Reads the records of all entries. Their names point into `entries`.
  std::vector<ZipDirectory::Record> records(std::string_view entries) const {
    check_is_pytorchs(entries);
    std::vector<ZipDirectory::Record> records;
    records.reserve(count_);
    for_each(entries, [&](auto entry, auto name, auto extra) {
      records.push_back(record_of(entry, name, extra));
    });
    return records;
  }

 private:
  /// Throws if the archive has none of the records that PyTorch's archives have.
  void check_is_pytorchs(std::string_view entries) const {
    constexpr size_t kMostShown = 3;
    bool is_pytorchs = false, is_numpys = false;
    std::vector<std::string> names;
    for_each(entries, [&](auto /*entry*/, auto name, auto /*extra*/) {
      const auto own = name.substr(name.rfind('/') + 1);
      is_pytorchs |= own == "version" || own == "data.pkl" || own == "archive_format" ||
                     own == "serialized_exported_program.json";
      is_numpys |= own.size() > 4 && own.substr(own.size() - 4) == ".npy";
      if (names.size() < kMostShown) names.push_back(in_quotes(name));
    });
    if (is_pytorchs) return;
    const auto* advice =
        is_numpys ? "in Python, safetensors.numpy.save_file(dict(numpy.load(path)), "
                    "\"weights.safetensors\") makes a file of NumPy's arrays that heed reads"
                  : "unpack it";
    refuse_format(
        bytes_, fmt::format("it is a zip archive of other files, {}{}: {}", fmt::join(names, ", "),
                            count_ > names.size() ? ", ..." : "", advice));
  }

  ZipDirectory::Record record_of(std::string_view entry, std::string_view name,
                                 std::string_view extra) const {
    const auto method = number<uint16_t>(entry, 10);
    uint64_t compressed = number<uint32_t>(entry, 20);
    uint64_t size = number<uint32_t>(entry, 24);
    uint64_t local = number<uint32_t>(entry, 42);
    read_extra64(extra, {&size, &compressed, &local});
    const auto data = data_of(local, compressed);
    HEED_CHECK_ZIP(data, "record {}: its place ({}, {} bytes) must lie before the directory ({})",
                   in_quotes(name), local, compressed, begin_);
    HEED_CHECK_ZIP((number<uint16_t>(entry, 8) & ~kPlainFlags) == 0,
                   "record {} must be neither encrypted nor a patch", in_quotes(name));
    HEED_CHECK_ZIP((number<uint32_t>(entry, 38) & kFolderAttribute) == 0,
                   "record {} must be a file", in_quotes(name));
    if (method == kStored) {
      HEED_CHECK_ZIP(size == compressed, "record {}: its size ({}) must equal that stored ({})",
                     in_quotes(name), size, compressed);
      return {name, {*data, size}, /*stored=*/true, size, local};
    }
    // torch.jit.save compresses source code, and nothing else.
    const auto inner = name.substr(std::min(name.find('/'), name.size()));
    HEED_CHECK_ZIP(method == kDeflated && begins_with(inner, "/code/"),
                   "record {} must be stored without compression", in_quotes(name));
    HEED_CHECK_ZIP(size <= ZipDirectory::kMostCode, "record {}: its size ({}) must be at most {}",
                   in_quotes(name), size, ZipDirectory::kMostCode);
    return {name, {*data, compressed}, /*stored=*/false, size, local};
  }

  /// The place of a record's bytes, behind its header at `local`, whose length varies. None if
  /// there is no header, or if the bytes do not lie before the directory.
  std::optional<uint64_t> data_of(uint64_t local, uint64_t size) const {
    if (begin_ < kLocalSize || local > begin_ - kLocalSize) return std::nullopt;
    const auto header = bytes_.text(local, kLocalSize);
    if (!begins_with(header, kLocalSignature)) return std::nullopt;
    const auto at =
        local + kLocalSize + number<uint16_t>(header, 26) + number<uint16_t>(header, 28);
    if (at > begin_ || size > begin_ - at) return std::nullopt;
    return at;
  }

  /// Replaces the values that do not fit in 32 bits by those in the entry's 64-bit field.
  static void read_extra64(std::string_view extra, std::initializer_list<uint64_t*> values) {
    constexpr uint16_t kExtra64 = 1;
    constexpr size_t kFieldHeader = 4;
    while (extra.size() >= kFieldHeader) {
      const auto id = number<uint16_t>(extra, 0);
      auto field = extra.substr(kFieldHeader, number<uint16_t>(extra, 2));
      extra.remove_prefix(kFieldHeader + field.size());
      if (id != kExtra64) continue;
      for (auto* value : values) {
        if (*value != kIn64 || field.size() < sizeof(uint64_t)) continue;
        *value = number<uint64_t>(field, 0);
        field.remove_prefix(sizeof(uint64_t));
      }
    }
  }

  /// Reads a little-endian number at `at`. The caller has checked that it lies in the bytes.
  template <typename Number>
  static uint64_t number(std::string_view bytes, size_t at) {
    uint64_t value = 0;
    for (size_t i = sizeof(Number); i-- > 0;) {
      value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
    }
    return value;
  }

  const Bytes& bytes_;
  uint64_t begin_, size_, count_;
};

/// Whether the name is that of the record of the version. Like LibTorch's reader, ignores the case
/// of letters.
bool is_version(std::string_view name) {
  constexpr std::string_view kLongest = "/.data/version";
  const auto inner = name.substr(std::min(name.find('/'), name.size()));
  if (inner.size() > kLongest.size()) return false;
  std::string lower(inner);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower == "/version" || lower == kLongest;
}

bool is_supported(const std::string& version) {
  const auto digits = version.substr(0, version.find('\n'));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() &&
         number >= caffe2::serialize::kMinSupportedFileFormatVersion &&
         number <= caffe2::serialize::kMaxSupportedFileFormatVersion;
}

bool by_name(const ZipDirectory::Record& a, const ZipDirectory::Record& b) {
  return a.name < b.name;
}

}  // namespace

bool is_archive(std::string_view file) { return begins_with(file, kLocalSignature); }

ZipDirectory::ZipDirectory(const Bytes& bytes) : bytes_(bytes) {
  const Directory directory(bytes);
  entries_ = directory.entries();
  records_ = directory.records(entries_);
  const auto first = records_[0].name;
  top_ = first.substr(0, first.find('/') + 1);
  std::sort(records_.begin(), records_.end(), by_name);
  const auto twice =
      std::adjacent_find(records_.begin(), records_.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  HEED_CHECK_ZIP(twice == records_.end(), "record {} must be there once", in_quotes(twice->name));
  check_apart();
}

const ZipDirectory::Record* ZipDirectory::record(std::string_view name) const {
  const auto found =
      std::lower_bound(records_.begin(), records_.end(), Record{name, {}, true, 0}, by_name);
  return found == records_.end() || found->name != name ? nullptr : &*found;
}

std::optional<Place> ZipDirectory::find(std::string_view name) const {
  const auto* const found = record(name);
  return found == nullptr || !found->stored ? std::nullopt : std::optional(found->place);
}

/// Throws if records overlap, which would make a small file a lot of work.
void ZipDirectory::check_apart() const {
  std::vector<const Record*> by_place;
  by_place.reserve(records_.size());
  for (const auto& record : records_) by_place.push_back(&record);
  std::sort(by_place.begin(), by_place.end(),
            [](const Record* a, const Record* b) { return a->header < b->header; });
  const auto overlap = std::adjacent_find(
      by_place.begin(), by_place.end(),
      [](const auto* a, const auto* b) { return a->place.offset + a->place.size > b->header; });
  HEED_CHECK_ZIP(overlap == by_place.end(), "record {} must not lie in record {}",
                 in_quotes((*(overlap + 1))->name), in_quotes((*overlap)->name));
}

void ZipDirectory::check_version() const {
  constexpr size_t kLongestVersion = 100;  // a number and a line feed
  bool has_version = false;
  for (const auto& record : records_) {
    if (!record.stored || !is_version(record.name)) continue;
    has_version |= !top_.empty() && begins_with(record.name, top_);
    const auto version = bytes_.text(record.place.offset, std::min(record.size, kLongestVersion));
    HEED_CHECK_ZIP(record.size <= kLongestVersion && is_supported(version),
                   "record {} ({}) must be a version of PyTorch's format", in_quotes(record.name),
                   in_quotes(version));
  }
  HEED_CHECK_ZIP(has_version, "its folder ({}) must hold a record version", in_quotes(top_));
}

}  // namespace heed::detail
