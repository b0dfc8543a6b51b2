#include "weights/formats/weight_file.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "weights/formats/other_files.h"
#include "weights/formats/pt2_file.h"
#include "weights/formats/safetensors.h"
#include "weights/formats/safetensors_index.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

namespace {

/// Whether a file is a bare pickle: PyTorch before 1.6 and pickle.dump write these.
bool is_pickle(std::string_view file) { return !file.empty() && file[0] == '\x80'; }

void check_no_key(const std::string& key, const Bytes& bytes) {
  HEED_CHECK(key.empty(),
             "key ({}) must be empty: {} is a safetensors file; options.prefix selects names", key,
             bytes.source());
}

}  // namespace

bool holds_weights(std::string_view start) { return is_archive(start) || is_safetensors(start); }

FileEntries read_weight_file(const Bytes& bytes, const std::string& key) {
  constexpr size_t kStart = 4096;  // bytes that tell formats apart
  const auto start = bytes.text(0, kStart);
  if (is_archive(start)) {
    const ZipDirectory directory(bytes);
    auto entries =
        is_pt2(directory) ? read_pt2_file(directory, key) : read_pytorch_file(directory, key);
    entries.files = {bytes};
    return entries;
  }
  if (is_safetensors(start)) {
    check_no_key(key, bytes);
    auto entries = read_safetensors(bytes);
    entries.files = {bytes};
    return entries;
  }
  if (is_safetensors_index(start)) {
    check_no_key(key, bytes);
    HEED_CHECK(bytes.is_file(),
               "{} must be of one file; it is the index of several: pass the index's path",
               bytes.source());
    const auto folder = std::filesystem::path(bytes.path()).parent_path();
    std::vector<Bytes> files = {bytes};
    auto entries = read_safetensors_index(bytes, [&](const std::string& name) {
      return files.emplace_back((folder / name).string());
    });
    entries.files = std::move(files);
    return entries;
  }
  HEED_CHECK(!is_pickle(start),
             "{} must not be a bare pickle, as torch.save wrote before PyTorch 1.6: torch.save it "
             "again with a newer one",
             bytes.source());
  const auto size = bytes.is_file() ? fmt::format("{} ", bytes.size()) : "";
  refuse_format(bytes, other_file(bytes).value_or(fmt::format("its {}bytes begin with {}", size,
                                                              in_quotes(start.substr(0, 8)))));
}

}  // namespace heed::detail
