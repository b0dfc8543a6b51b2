// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/weight_file.h"

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "weights/formats/legacy_file.h"
#include "weights/formats/other_files.h"
#include "weights/formats/pt2_file.h"
#include "weights/formats/pytorch_file.h"
#include "weights/formats/safetensors.h"
#include "weights/formats/weight_index.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

namespace {

constexpr size_t kStart = 4096;  // bytes that tell formats apart

/// Whether a file is a bare pickle, as pickle.dump writes it.
bool is_pickle(std::string_view file) { return !file.empty() && file[0] == '\x80'; }

void check_no_key(const std::string& key, const Bytes& bytes, const char* what) {
  HEED_CHECK(key.empty(), "key ({}) must be empty: {} is {}; options.prefix selects names", key,
             bytes.source(), what);
}

/// Reads the tensors that a file holds itself; none if its format is not known.
std::optional<FileEntries> read_tensors(const Bytes& bytes, const std::string& key) {
  const auto start = bytes.text(0, kStart);
  if (is_archive(start)) {
    const ZipDirectory directory(bytes);
    return is_pt2(directory) ? read_pt2_file(directory, key) : read_pytorch_file(directory, key);
  }
  if (is_legacy_file(start)) return read_legacy_file(bytes, key);
  if (!is_safetensors(start)) return std::nullopt;
  check_no_key(key, bytes, "a safetensors file");
  return read_safetensors(bytes);
}

/// Reads the files that an index names, which lie beside it.
FileEntries read_shards(const Bytes& index) {
  HEED_CHECK(index.is_file(),
             "{} must be of one file; it is the index of several: pass the index's path",
             index.source());
  const auto folder = std::filesystem::path(index.path()).parent_path();
  std::vector<Bytes> files = {index};
  auto entries = read_weight_index(index, [&](const std::string& name) {
    const auto bytes = files.emplace_back((folder / name).string());
    auto tensors = read_tensors(bytes, "");
    const auto other = tensors ? std::nullopt : other_file(bytes);
    HEED_CHECK_FILE(tensors, index, "index",
                    "weight_map: {} must be a safetensors file or what torch.save wrote{}",
                    in_quotes(name), other ? "; " + *other : "");
    return *std::move(tensors);
  });
  entries.files = std::move(files);
  return entries;
}

}  // namespace

bool holds_weights(std::string_view start) {
  return is_archive(start) || is_legacy_file(start) || is_safetensors(start);
}

FileEntries read_weight_file(const Bytes& bytes, const std::string& key) {
  if (auto entries = read_tensors(bytes, key)) {
    entries->files = {bytes};
    return *std::move(entries);
  }
  const auto start = bytes.text(0, kStart);
  if (is_weight_index(start)) {
    check_no_key(key, bytes, "an index");
    return read_shards(bytes);
  }
  HEED_CHECK(!is_pickle(start),
             "{} must not be a bare pickle, as pickle.dump writes it: torch.save what it holds",
             bytes.source());
  const auto size = bytes.is_file() ? fmt::format("{} ", bytes.size()) : "";
  refuse_format(bytes, other_file(bytes).value_or(fmt::format("its {}bytes begin with {}", size,
                                                              in_quotes(start.substr(0, 8)))));
}

}  // namespace heed::detail
