// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/safetensors.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "weights/formats/file_tensors.h"
#include "weights/formats/safetensors_dtypes.h"

#define HEED_CHECK_SAFETENSORS(condition, place, ...) \
  HEED_CHECK_FILE(condition, bytes_, "safetensors", place, __VA_ARGS__)

namespace heed::detail {

namespace {

using Json = nlohmann::json;

constexpr size_t kSizeBytes = 8;                  // bytes that hold the header's size
constexpr uint64_t kLongestHeader = 100'000'000;  // the format's limit

/// The header's entry of one tensor.
struct Entry {
  std::optional<at::ScalarType> dtype;  // none where LibTorch has no such dtype
  std::string dtype_name = {};
  std::vector<int64_t> shape;
  std::array<uint64_t, 2> offsets{};  // begin and end in the data
};

using Entries = std::map<std::string, Entry>;

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

/// Receives the header's JSON token by token: {name: {dtype, shape, data_offsets}, ...}. A tree of
/// it could be much larger than the file.
class Header : public nlohmann::json_sax<Json> {
 public:
  explicit Header(const Bytes& bytes) : bytes_(bytes) {}

  Entries entries;
  std::map<std::string, std::string> packed;    // FileEntries::packed
  std::map<std::string, std::string> metadata;  // other programs' entries

  bool null() override { return refuse("null"); }
  bool boolean(bool /*value*/) override { return refuse("a boolean"); }
  bool number_integer(int64_t /*value*/) override { return refuse("a negative number"); }
  bool number_float(double /*value*/, const std::string& text) override {
    return refuse(text.substr(0, 20));
  }
  bool binary(Json::binary_t& /*value*/) override { return refuse("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (level_ != Level::array) return refuse(std::to_string(value));
    if (field_ == "data_offsets") {
      if (offsets_ == entry_->offsets.size()) return refuse("a third number");
      entry_->offsets[offsets_++] = value;
    } else {
      if (value > uint64_t{INT64_MAX}) return refuse(std::to_string(value));
      if (entry_->shape.size() == kMostDims) return refuse("more than 64 sizes");
      entry_->shape.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (level_ == Level::metadata) return note(value);
    if (level_ != Level::entry || field_ != "dtype") return refuse(in_quotes(value));
    entry_->dtype = safetensors_dtype(value);
    if (!entry_->dtype) entry_->dtype_name = in_quotes(value);
    return true;
  }

  bool start_object(size_t /*size*/) override {
    if (level_ == Level::outside) {
      level_ = Level::header;
    } else if (level_ == Level::header) {
      level_ = name_ == "__metadata__" ? Level::metadata : Level::entry;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    switch (level_) {
      case Level::header:
        return begin_entry(value);
      case Level::entry:
        return begin_field(value);
      case Level::metadata:
        metadata_key_ = std::move(value);
        return true;
      default:
        return true;
    }
  }

  bool end_object() override {
    if (level_ == Level::entry) {
      HEED_CHECK_SAFETENSORS(fields_.all() && offsets_ == entry_->offsets.size(),
                             "header: tensor {} must have dtype, shape and two data_offsets",
                             in_quotes(name_));
    }
    level_ = level_ == Level::header ? Level::outside : Level::header;
    return true;
  }

  bool start_array(size_t /*size*/) override {
    if (level_ != Level::entry || field_ == "dtype") return refuse("an array");
    level_ = Level::array;
    return true;
  }

  bool end_array() override {
    level_ = Level::entry;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    HEED_CHECK_SAFETENSORS(false, "header: byte {} must be of a JSON object in UTF-8", position);
  }

 private:
  enum class Level { outside, header, metadata, entry, array };

  bool begin_entry(std::string& name) {
    name_ = std::move(name);
    field_.clear();
    fields_.reset();
    offsets_ = 0;
    if (name_ == "__metadata__") {
      HEED_CHECK_SAFETENSORS(!has_metadata_, "header: {} must be there once", in_quotes(name_));
      has_metadata_ = true;
      return true;
    }
    const auto [entry, added] = entries.try_emplace(name_);
    HEED_CHECK_SAFETENSORS(added, "header: tensor {} must be there once", in_quotes(name_));
    HEED_CHECK_SAFETENSORS(entries.size() <= kMostNames, "header must have at most {} tensors",
                           kMostNames);
    entry_ = &entry->second;
    return true;
  }

  bool begin_field(std::string& name) {
    field_ = std::move(name);
    constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
    const auto known = std::find(kFields.begin(), kFields.end(), field_);
    HEED_CHECK_SAFETENSORS(
        known != kFields.end(),
        "header: tensor {} must have dtype, shape and data_offsets only; it has {}",
        in_quotes(name_), in_quotes(field_));
    auto is_there = fields_[static_cast<size_t>(known - kFields.begin())];
    HEED_CHECK_SAFETENSORS(!is_there, "header: tensor {}: {} must be there once", in_quotes(name_),
                           field_);
    is_there = true;
    return true;
  }

  /// Keeps the descriptions of packed weights, and other entries.
  bool note(std::string& value) {
    HEED_CHECK_SAFETENSORS(packed.size() + metadata.size() < kMostNames,
                           "header must have at most {} entries of \"__metadata__\"", kMostNames);
    if (!begins_with(metadata_key_, kPackedKey)) {
      metadata.emplace(metadata_key_, std::move(value));
      return true;
    }
    const auto name = metadata_key_.substr(kPackedKey.size());
    HEED_CHECK_SAFETENSORS(packed.emplace(name, std::move(value)).second,
                           "header: {} must be there once", in_quotes(metadata_key_));
    return true;
  }

  bool refuse(const std::string& what) const {
    HEED_CHECK_SAFETENSORS(!name_.empty() || level_ != Level::outside,
                           "header must be a JSON object; it is {}", what);
    HEED_CHECK_SAFETENSORS(level_ != Level::metadata && name_ != "__metadata__",
                           "header: \"__metadata__\" must map strings to strings; it holds {}",
                           what);
    HEED_CHECK_SAFETENSORS(!field_.empty(), "header: tensor {} must be an object; it is {}",
                           in_quotes(name_), what);
    const char* rule = field_ == "dtype"   ? "must be the name of a dtype"
                       : field_ == "shape" ? "must be an array of sizes"
                                           : "must be two offsets";
    HEED_CHECK_SAFETENSORS(false, "header: tensor {}: {} {}; it holds {}", in_quotes(name_), field_,
                           rule, what);
  }

  const Bytes& bytes_;
  Level level_ = Level::outside;
  bool has_metadata_ = false;
  std::string name_, field_, metadata_key_;
  std::bitset<3> fields_;  // those that this tensor has so far
  size_t offsets_ = 0;     // how many offsets it has so far
  Entry* entry_ = nullptr;
};

/// Reads the parts of a safetensors file.
class File {
 public:
  explicit File(const Bytes& bytes) : bytes_(bytes) {
    HEED_CHECK_SAFETENSORS(bytes.size() >= kSizeBytes, "its size ({}) must be at least 8",
                           bytes.size());
    const auto size = little_endian(bytes.text(0, kSizeBytes));
    const auto rest = bytes.size() - kSizeBytes;
    HEED_CHECK_SAFETENSORS(size <= kLongestHeader, "header size ({}) must be at most {}", size,
                           kLongestHeader);
    HEED_CHECK_SAFETENSORS(size <= rest, "header size ({}) must be at most {}, the bytes left",
                           size, rest);
    header_ = bytes.text(kSizeBytes, size);
    data_size_ = rest - size;
  }

  FileEntries tensors() const {
    Header header(bytes_);
    Json::sax_parse(header_.begin(), header_.end(), &header);
    check_extents(header.entries);
    FileEntries found;
    found.packed = std::move(header.packed);
    for (const auto& [name, entry] : header.entries) {
      if (!entry.dtype) {
        add_tensor(found, name, Unheld{"a tensor of " + entry.dtype_name});
        continue;
      }
      const auto strides = c10::contiguous_strides(entry.shape);
      const Extent extent{kSizeBytes + header_.size() + entry.offsets[0], *entry.dtype, entry.shape,
                          strides};
      found.tensors.emplace_hint(
          found.tensors.end(), name,
          tensor_at(bytes_, extent, "safetensors", "tensor " + in_quotes(name)));
    }
    add_second_names(found, header.metadata);
    return found;
  }

 private:
  /// Checks that the tensors lie end to end and fill the data.
  void check_extents(const Entries& entries) const {
    std::vector<const Entries::value_type*> by_place;
    by_place.reserve(entries.size());
    for (const auto& item : entries) by_place.push_back(&item);
    std::sort(by_place.begin(), by_place.end(),
              [](const auto* a, const auto* b) { return a->second.offsets < b->second.offsets; });
    uint64_t end = 0;
    for (const auto* item : by_place) {
      const auto& [name, entry] = *item;
      check_size(name, entry);
      HEED_CHECK_SAFETENSORS(entry.offsets[0] == end,
                             "tensor {}: data_offsets [{}, {}] must begin at {}, where the tensor "
                             "before it ends",
                             in_quotes(name), entry.offsets[0], entry.offsets[1], end);
      end = entry.offsets[1];
    }
    HEED_CHECK_SAFETENSORS(end == data_size_, "its tensors ({} bytes) must fill the data ({})", end,
                           data_size_);
  }

  void check_size(const std::string& name, const Entry& entry) const {
    const auto [begin, end] = std::pair(entry.offsets[0], entry.offsets[1]);
    HEED_CHECK_SAFETENSORS(begin <= end && end <= data_size_,
                           "tensor {}: data_offsets [{}, {}] must lie in the data (0 to {})",
                           in_quotes(name), begin, end, data_size_);
    if (!entry.dtype) return;  // no dtype: its width is not known
    const auto count = element_count(entry.shape);
    const auto width = c10::elementSize(*entry.dtype);
    HEED_CHECK_SAFETENSORS(count && static_cast<uint64_t>(*count) * width == end - begin,
                           "tensor {}: data_offsets [{}, {}] must hold the elements of {} {}",
                           in_quotes(name), begin, end, c10::toString(*entry.dtype),
                           c10::str(at::IntArrayRef(entry.shape)));
  }

  const Bytes& bytes_;
  std::string header_;
  size_t data_size_;
};

}  // namespace

bool is_safetensors(std::string_view file) {
  return file.size() > kSizeBytes && file[kSizeBytes - 1] == 0 && file[kSizeBytes] == '{';
}

FileEntries read_safetensors(const Bytes& bytes) { return File(bytes).tensors(); }

}  // namespace heed::detail
