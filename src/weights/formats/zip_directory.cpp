#include "weights/formats/zip_directory.h"

#include <caffe2/serialize/versions.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <vector>

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

class Directory {
 public:
  Directory(const Bytes& bytes, size_t most_memory)
      : bytes_(bytes), file_(bytes.view()), most_memory_(most_memory) {
    const auto end = file_.rfind(kEndSignature);
    HEED_CHECK_ZIP(end != std::string_view::npos && file_.size() - end >= kEndSize,
                   "it must end with a zip archive's directory (size {})", file_.size());
    count_ = number<uint16_t>(end + 10);
    size_ = number<uint32_t>(end + 12);
    begin_ = number<uint32_t>(end + 16);
    auto after = end;
    if (end >= kLocator64Size && file_.substr(end - kLocator64Size, 4) == kLocator64Signature) {
      after = number<uint64_t>(end - kLocator64Size + 8);
      HEED_CHECK_ZIP(end >= kLocator64Size + kEnd64Size &&
                         after <= end - kLocator64Size - kEnd64Size &&
                         file_.substr(after, 4) == kEnd64Signature,
                     "zip directory: its 64-bit end must be at {}", after);
      count_ = number<uint64_t>(after + 32);
      size_ = number<uint64_t>(after + 40);
      begin_ = number<uint64_t>(after + 48);
    }
    HEED_CHECK_ZIP(begin_ <= after && size_ == after - begin_,
                   "zip directory: its place ({}, {} bytes) must end at {}", begin_, size_, after);
    HEED_CHECK_ZIP(count_ >= 1 && count_ <= size_ / kEntrySize,
                   "zip directory: its count ({}) must fit its {} bytes", count_, size_);
  }

  void check() {
    std::vector<std::string_view> names(count_);
    auto at = begin_;
    for (auto& name : names) {
      HEED_CHECK_ZIP(begin_ + size_ - at >= kEntrySize && file_.substr(at, 4) == kEntrySignature,
                     "zip directory: an entry must be at {}", at);
      const auto name_size = number<uint16_t>(at + 28);
      const auto extra_size = number<uint16_t>(at + 30);
      const auto whole = kEntrySize + name_size + extra_size + number<uint16_t>(at + 32);
      HEED_CHECK_ZIP(begin_ + size_ - at >= whole,
                     "zip directory: the entry at {} ({} bytes) must end before {}", at, whole,
                     begin_ + size_);
      name = file_.substr(at + kEntrySize, name_size);
      check_entry(at, name, at + kEntrySize + name_size, extra_size);
      at += whole;
    }
    const auto top = names[0].substr(0, names[0].find('/') + 1);
    const auto in_top = [&](std::string_view name) {
      return !top.empty() && name.substr(0, top.size()) == top;
    };
    HEED_CHECK_ZIP(std::any_of(names.begin(), names.end(),
                               [&](auto name) { return in_top(name) && is_version(name); }),
                   "its folder ({}) must hold a record version", in_quotes(top));
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    HEED_CHECK_ZIP(twice == names.end(), "record {} must be there once", in_quotes(*twice));
  }

 private:
  void check_entry(size_t at, std::string_view name, size_t extra, size_t extra_size) const {
    const auto method = number<uint16_t>(at + 10);
    uint64_t compressed = number<uint32_t>(at + 20);
    uint64_t size = number<uint32_t>(at + 24);
    uint64_t local = number<uint32_t>(at + 42);
    read_extra64(extra, extra_size, {&size, &compressed, &local});
    const auto record = in_quotes(name);
    const auto data = data_of(local, compressed);
    HEED_CHECK_ZIP(data, "record {}: its place ({}, {} bytes) must lie before the directory ({})",
                   record, local, compressed, begin_);
    HEED_CHECK_ZIP((number<uint16_t>(at + 8) & ~kPlainFlags) == 0,
                   "record {} must be neither encrypted nor a patch", record);
    HEED_CHECK_ZIP((number<uint32_t>(at + 38) & kFolderAttribute) == 0, "record {} must be a file",
                   record);
    if (method == kStored) {
      HEED_CHECK_ZIP(size == compressed, "record {}: its size ({}) must equal that stored ({})",
                     record, size, compressed);
      HEED_CHECK_ZIP(!is_version(name) || can_be_read(*data),
                     "record {} ({}) must be a version of PyTorch's format", record,
                     in_quotes(*data));
      return;
    }
    // torch.jit.save compresses source code, and nothing else.
    const auto inner = name.substr(std::min(name.find('/'), name.size()));
    HEED_CHECK_ZIP(method == kDeflated && inner.substr(0, 6) == "/code/",
                   "record {} must be stored without compression", record);
    HEED_CHECK_ZIP(size <= most_memory_, "record {}: its size ({}) must be at most {}", record,
                   size, most_memory_);
  }

  /// A record's bytes, which follow its header, that of another length in each zip file.
  std::optional<std::string_view> data_of(uint64_t local, uint64_t size) const {
    if (begin_ < kLocalSize || local > begin_ - kLocalSize ||
        file_.substr(local, 4) != kLocalSignature) {
      return std::nullopt;
    }
    const auto at =
        local + kLocalSize + number<uint16_t>(local + 26) + number<uint16_t>(local + 28);
    if (at > begin_ || size > begin_ - at) return std::nullopt;
    return file_.substr(at, size);
  }

  /// LibTorch's reader leaks what it has allocated when it cannot read the version.
  static bool can_be_read(std::string_view version) {
    const auto digits = version.substr(0, version.find('\n'));
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc() && end == digits.data() + digits.size() &&
           number >= caffe2::serialize::kMinSupportedFileFormatVersion &&
           number <= caffe2::serialize::kMaxSupportedFileFormatVersion;
  }

  /// As the reader finds it: in any case of letters.
  static bool is_version(std::string_view name) {
    auto inner = std::string(name.substr(std::min(name.find('/'), name.size())));
    std::transform(inner.begin(), inner.end(), inner.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return inner == "/version" || inner == "/.data/version";
  }

  /// Replaces the values that do not fit in 32 bits by those in the entry's 64-bit field.
  void read_extra64(size_t at, size_t size, std::initializer_list<uint64_t*> values) const {
    constexpr uint16_t kExtra64 = 1;
    constexpr size_t kFieldHeader = 4;
    const auto end = at + size;
    while (end - at >= kFieldHeader) {
      const auto id = number<uint16_t>(at);
      const auto field_end = std::min<size_t>(end, at + kFieldHeader + number<uint16_t>(at + 2));
      auto place = at + kFieldHeader;
      at = field_end;
      if (id != kExtra64) continue;
      for (auto* value : values) {
        if (*value != kIn64 || field_end - place < sizeof(uint64_t)) continue;
        *value = number<uint64_t>(place);
        place += sizeof(uint64_t);
      }
    }
  }

  /// Little-endian. The caller has seen that it lies in the file.
  template <typename Number>
  uint64_t number(size_t at) const {
    uint64_t value = 0;
    for (size_t i = sizeof(Number); i-- > 0;) {
      value = value << 8 | static_cast<uint8_t>(file_[at + i]);
    }
    return value;
  }

  const Bytes& bytes_;
  std::string_view file_;
  size_t most_memory_;
  uint64_t begin_, size_, count_;
};

}  // namespace

void check_zip_directory(const Bytes& bytes, size_t most_memory) {
  Directory(bytes, most_memory).check();
}

}  // namespace heed::detail
