// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/pickles.h"

/// Archives of weights, written record by record: TorchScript's, torch.export's, and zip archives
/// with any directory. And the header of a safetensors file.
namespace heed::test::archives {

using namespace pickles;

inline std::string get(uint8_t index) { return std::string("h") + static_cast<char>(index); }
inline std::string put(uint8_t index) { return std::string("q") + static_cast<char>(index); }

inline std::string name_of(int number) { return text("w" + std::to_string(number)); }

/// As torch.jit.save writes it: code is compressed, and nothing else.
inline std::string script_archive(const std::string& pickle, const Records& code) {
  std::string archive;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t count) {
    archive.append(static_cast<const char*>(bytes), count);
    return count;
  });
  for (const auto& [name, bytes] : saved(pickle)) {
    writer.writeRecord(name, bytes.data(), bytes.size());
  }
  for (const auto& [name, bytes] : code) {
    writer.writeRecord(name, bytes.data(), bytes.size(), /*compress=*/true);
  }
  writer.writeEndOfFile();
  return archive;
}

/// The header of a safetensors file without data, and its size.
inline std::string with_size(const std::string& header) {
  return bytes_of(static_cast<uint64_t>(header.size())) + header;
}

/// A record of a zip archive, and where the directory says that it is.
struct ZipRecord {
  std::string name;
  uint64_t header, size;
};

inline std::string zip_header(const std::string& name, uint64_t size) {
  const auto sizes = bytes_of(static_cast<uint32_t>(size)) + bytes_of(static_cast<uint32_t>(size));
  return "PK\3\4" + std::string(14, '\0') + sizes + bytes_of(static_cast<uint16_t>(name.size())) +
         std::string(2, '\0') + name;
}

/// An archive whose directory is given, with a 64-bit end, which has room for any count.
inline std::string with_directory(const std::string& data, const std::vector<ZipRecord>& records) {
  std::string directory;
  for (const auto& [name, header, size] : records) {
    const auto size32 = bytes_of(static_cast<uint32_t>(size));
    directory += "PK\1\2" + std::string(16, '\0') + size32 + size32 +
                 bytes_of(static_cast<uint16_t>(name.size())) + std::string(12, '\0') +
                 bytes_of(static_cast<uint32_t>(header)) + name;
  }
  const auto count = bytes_of(static_cast<uint64_t>(records.size()));
  const auto end = static_cast<uint64_t>(data.size() + directory.size());
  return data + directory + "PK\6\6" + std::string(20, '\0') + count + count +
         bytes_of(static_cast<uint64_t>(directory.size())) +
         bytes_of(static_cast<uint64_t>(data.size())) + "PK\6\7" + std::string(4, '\0') +
         bytes_of(end) + std::string(4, '\0') + "PK\5\6" + std::string(4, '\0') +
         std::string(12, '\xff') + std::string(2, '\0');
}

/// A sound archive, of any number of records.
inline std::string zip_of(const Records& records) {
  std::string data;
  std::vector<ZipRecord> places;
  for (const auto& [name, bytes] : records) {
    places.push_back({name, data.size(), bytes.size()});
    data += zip_header(name, bytes.size()) + bytes;
  }
  return with_directory(data, places);
}

/// Adds the folder and the version that torch.save and torch.export.save write.
inline Records in_archive(const Records& records) {
  Records found{{"archive/version", "3\n"}};
  for (const auto& [name, bytes] : records) found["archive/" + name] = bytes;
  return found;
}

/// A program of torch.export with these weights by name, each with its JSON.
inline Records exported(const std::string& weights, const std::string& constants = "") {
  const auto config = [](const std::string& entries) { return "{\"config\":{" + entries + "}}"; };
  return {{"archive_format", "pt2"},
          {"archive_version", "0"},
          {"byteorder", "little"},
          {"models/model.json", "{}"},
          {"data/weights/weight_0", numbers_to(6)},
          {"data/weights/model_weights_config.json", config(weights)},
          {"data/constants/model_constants_config.json", config(constants)}};
}

inline std::string number_json(int64_t value) {
  return "{\"as_int\":" + std::to_string(value) + "}";
}

/// The JSON of a weight of a program.
inline std::string weight_json(const std::string& record, const std::string& sizes,
                               const std::string& strides, bool pickled = false) {
  return "{\"path_name\":\"" + record + "\",\"use_pickle\":" + (pickled ? "true" : "false") +
         ",\"tensor_meta\":{\"dtype\":7,\"sizes\":[" + sizes + "],\"strides\":[" + strides +
         "],\"storage_offset\":" + number_json(0) + ",\"layout\":7}}";
}

inline std::string in_quotes(const std::string& text) { return '"' + text + '"'; }

}  // namespace heed::test::archives
