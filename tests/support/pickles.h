// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/arange.h>
#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>

/// Pickles, written opcode by opcode (docs.python.org/3/library/pickletools.html), and the archives
/// in which PyTorch has them.
namespace heed::test::pickles {

inline std::string text(const std::string& value) {
  return std::string("\x8c") + static_cast<char>(value.size()) + value;  // SHORT_BINUNICODE
}

template <typename Number>
std::string bytes_of(Number value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

inline std::string integer(int32_t value) { return 'J' + bytes_of(value); }  // BININT

inline std::string global(const std::string& module, const std::string& name) {
  return 'c' + module + '\n' + name + '\n';
}

inline std::string tuple(const std::string& items) { return '(' + items + 't'; }

inline std::string pickle(const std::string& program) {
  return std::string("\x80\x02") + program + '.';
}

inline std::string dict(const std::string& entries) { return "}(" + entries + 'u'; }

inline std::string call(const std::string& function, const std::string& arguments) {
  return function + tuple(arguments) + 'R';
}

inline const auto kRebuild = global("torch._utils", "_rebuild_tensor_v2");

inline std::string storage(const std::string& type, int32_t count,
                           const std::string& record = "0") {
  return tuple(text("storage") + global("torch", type) + text(record) + text("cpu") +
               integer(count)) +
         'Q';
}

/// A tensor of the archive's record data/0, which holds the floats 0 to 5.
inline std::string tensor(const std::string& sizes, const std::string& strides, int32_t offset = 0,
                          const std::string& from = storage("FloatStorage", 6)) {
  return call(kRebuild, from + integer(offset) + tuple(sizes) + tuple(strides) + '\x89' + '}');
}

inline const auto kWhole = tensor(integer(2) + integer(3), integer(3) + integer(1));

using Records = std::map<std::string, std::string>;

inline std::string numbers_to(int64_t count) {
  const auto numbers = at::arange(static_cast<float>(count));
  return {static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes()};
}

/// The records that torch.save writes round a pickle.
inline Records saved(const std::string& pickle) {
  return {{"data.pkl", pickle}, {"byteorder", "little"}, {"data/0", numbers_to(6)}};
}

/// The pickle with which files of torch.save before version 1.6 begin.
inline const std::string kLegacyMagic(
    "\x80\x02\x8a\nl\xfc\x9c"
    "F\xf9 j\xa8P\x19.",
    15);

/// A storage as such a file names it; `view` is a part of it.
inline std::string legacy_storage(const std::string& type, int32_t count,
                                  const std::string& key = "0", const std::string& view = "N") {
  return tuple(text("storage") + global("torch", type) + text(key) + text("cpu") + integer(count) +
               view) +
         'Q';
}

inline std::string legacy_tensor(const std::string& sizes, const std::string& strides,
                                 int32_t offset = 0) {
  return tensor(sizes, strides, offset, legacy_storage("FloatStorage", 6));
}

/// The element count of a storage, and its bytes.
using Storage = std::pair<int64_t, std::string>;

/// Such a file; `program` is the pickle of its object. Its storages are in the order of their keys.
inline std::string legacy(const std::string& program,
                          const std::map<std::string, Storage>& storages = {
                              {"0", {6, numbers_to(6)}}}) {
  auto file =
      kLegacyMagic + pickle(integer(1001)) +
      pickle(dict(text("protocol_version") + integer(1001) + text("little_endian") + '\x88')) +
      pickle(program);
  std::string keys, values;
  for (const auto& [key, storage] : storages) {
    keys += text(key);
    values += bytes_of(storage.first) + storage.second;
  }
  return file + pickle("](" + keys + 'e') + values;
}

/// A zip archive with these records in a folder "archive".
inline std::string archive_of(const Records& records, bool compress_all = false) {
  std::string archive;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t count) {
    archive.append(static_cast<const char*>(bytes), count);
    return count;
  });
  for (const auto& [name, bytes] : records) {
    writer.writeRecord(name, bytes.data(), bytes.size(), compress_all);
  }
  writer.writeEndOfFile();
  return archive;
}

/// A zip archive as Python's zipfile writes it, without a folder round the records.
inline std::string flat_zip(const Records& records) {
  std::string file, directory;
  for (const auto& [name, bytes] : records) {
    const auto size = bytes_of(static_cast<uint32_t>(bytes.size()));
    const auto sizes = std::string(4, '\0') + size + size + bytes_of<uint16_t>(name.size());
    const auto begin = bytes_of(static_cast<uint32_t>(file.size()));
    file += "PK\3\4" + std::string(10, '\0') + sizes + std::string(2, '\0') + name + bytes;
    directory += "PK\1\2" + std::string(12, '\0') + sizes + std::string(12, '\0') + begin + name;
  }
  const auto count = bytes_of(static_cast<uint16_t>(records.size()));
  const auto end = bytes_of(static_cast<uint32_t>(directory.size())) +
                   bytes_of(static_cast<uint32_t>(file.size()));
  return file + directory + "PK\5\6" + std::string(4, '\0') + count + count + end +
         std::string(2, '\0');
}

}  // namespace heed::test::pickles
