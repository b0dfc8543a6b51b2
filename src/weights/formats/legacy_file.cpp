// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/legacy_file.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "weights/formats/pickle.h"
#include "weights/formats/state_dict.h"

#define HEED_CHECK_LEGACY(condition, place, ...) \
  HEED_CHECK_FILE(condition, bytes_, "PyTorch", place, __VA_ARGS__)

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;

constexpr std::string_view kMagic(
    "\x80\x02\x8a\nl\xfc\x9c"
    "F\xf9 j\xa8P\x19.",
    15);
constexpr int64_t kProtocol = 1001;
constexpr size_t kLongestPickle = 100'000'000;  // bytes, as in the header of a safetensors file

/// A pickle of the file, and the bytes into which its strings point.
struct PickleRecord {
  std::string text;
  std::optional<Pickle> pickle;
};

/// Reads the parts of a file one after the other.
class LegacyFile {
 public:
  explicit LegacyFile(const Bytes& bytes) : bytes_(bytes), at_(kMagic.size()) {}

  FileEntries read(const std::string& key) {
    check_protocol();
    check_byte_order();
    PickleRecord object;
    const auto& pickle = read_pickle(object, "object");
    read_storages(element_widths(pickle));
    const auto find = [&](const std::string& storage) {
      const auto place = places_.find(storage);
      HEED_CHECK_LEGACY(place != places_.end(), "it must hold a storage {}", in_quotes(storage));
      return place->second;
    };
    return read_state_dict(bytes_, pickle.root(), key, PickledTensors(bytes_, find));
  }

 private:
  /// Reads the pickle that begins here into `record`, in pieces: its end is not known before.
  const Pickle& read_pickle(PickleRecord& record, const std::string& name) {
    const auto source = bytes_.source();
    const auto most = std::min(bytes_.size() - at_, kLongestPickle);
    for (auto size = std::min(kPiece, most);; size = std::min(4 * size, most)) {
      record.text = bytes_.text(at_, size);
      record.pickle = size < most
                          ? Pickle::beginning(source, name, record.text, memory_limit(bytes_))
                          : Pickle(source, name, record.text, memory_limit(bytes_));
      if (!record.pickle) continue;
      at_ += record.pickle->size();
      return *record.pickle;
    }
  }

  void check_protocol() {
    PickleRecord record;
    const auto& root = read_pickle(record, "protocol").root();
    const auto* protocol = std::get_if<int64_t>(&root);
    HEED_CHECK_LEGACY(protocol != nullptr && *protocol == kProtocol,
                      "its protocol must be {}; it is {}", kProtocol,
                      protocol != nullptr ? std::to_string(*protocol) : describe(root));
  }

  void check_byte_order() {
    PickleRecord record;
    const auto& root = read_pickle(record, "machine").root();
    const auto* machine = object_of(root);
    HEED_CHECK_LEGACY(machine != nullptr && machine->kind == Kind::dict,
                      "its machine must be a dict; it is {}", describe(root));
    for (const auto& [key, value] : machine->entries) {
      const auto* name = std::get_if<std::string_view>(&key);
      if (name == nullptr || *name != "little_endian") continue;
      const auto* is_little = std::get_if<bool>(&value);
      HEED_CHECK_LEGACY(is_little != nullptr && *is_little,
                        "{} must be True: save it on a machine of that order", *name);
    }
  }

  /// The bytes of an element of each storage that a pickle names. The first name of a storage
  /// decides, as in torch.save.
  static std::map<std::string_view, size_t> element_widths(const Pickle& pickle) {
    std::map<std::string_view, size_t> widths;
    for (const auto& object : pickle.objects()) {
      if (object.kind != Kind::persistent) continue;
      if (const auto id = storage_id(object)) widths.emplace(id->key, storage_width(id->type));
    }
    return widths;
  }

  /// Finds the storages, which stand behind their keys.
  void read_storages(const std::map<std::string_view, size_t>& widths) {
    PickleRecord record;
    const auto& root = read_pickle(record, "keys").root();
    const auto* keys = object_of(root);
    HEED_CHECK_LEGACY(keys != nullptr && keys->kind == Kind::list,
                      "the keys of its storages must be a list; they are {}", describe(root));
    for (const auto& value : keys->items) {
      const auto* key = std::get_if<std::string_view>(&value);
      HEED_CHECK_LEGACY(key != nullptr, "the key of a storage must be a string; it is {}",
                        describe(value));
      const auto width = widths.find(*key);
      HEED_CHECK_LEGACY(width != widths.end(), "storage {} must be in its object", in_quotes(*key));
      HEED_CHECK_LEGACY(width->second > 0, "storage {} must be of a type that heed knows",
                        in_quotes(*key));
      read_storage(std::string(*key), width->second);
    }
  }

  void read_storage(const std::string& key, size_t width) {
    int64_t count = 0;
    HEED_CHECK_LEGACY(bytes_.size() - at_ >= sizeof(count),
                      "storage {} must begin with its element count; {} bytes are left",
                      in_quotes(key), bytes_.size() - at_);
    bytes_.read(at_, &count, sizeof(count));
    at_ += sizeof(count);
    const auto left = bytes_.size() - at_;
    HEED_CHECK_LEGACY(count >= 0 && static_cast<uint64_t>(count) <= left / width,
                      "storage {} must have its {} elements of {} bytes; {} bytes are left",
                      in_quotes(key), count, width, left);
    const auto size = static_cast<size_t>(count) * width;
    HEED_CHECK_LEGACY(places_.emplace(key, Place{at_, size}).second,
                      "storage {} must be there once", in_quotes(key));
    at_ += size;
  }

  const Bytes& bytes_;
  size_t at_;  // where the next part begins
  std::map<std::string, Place> places_;
};

}  // namespace

bool is_legacy_file(std::string_view file) { return begins_with(file, kMagic); }

FileEntries read_legacy_file(const Bytes& bytes, const std::string& key) {
  return LegacyFile(bytes).read(key);
}

}  // namespace heed::detail
