#include "weights/formats/weight_file.h"

#include <filesystem>

#include "weights/formats/archive.h"
#include "weights/formats/safetensors.h"
#include "weights/formats/safetensors_index.h"

namespace heed::detail {

namespace {

/// PyTorch's own pickles before 1.6, and what pickle.dump writes.
bool is_pickle(std::string_view file) { return !file.empty() && file[0] == '\x80'; }

void check_no_key(const std::string& key, const Bytes& bytes) {
  HEED_CHECK(key.empty(),
             "key ({}) must be empty: path ({}) is a safetensors file; "
             "options.prefix selects names",
             key, bytes.path());
}

}  // namespace

FileEntries read_weight_file(const std::string& path, const std::string& key) {
  constexpr size_t kStart = 4096;  // tells formats apart
  const Bytes bytes(path);
  const auto start = bytes.text(0, kStart);
  if (is_archive(start)) return read_pytorch_file(bytes, key);
  if (is_safetensors(start)) {
    check_no_key(key, bytes);
    return {read_safetensors(bytes), {}};
  }
  if (is_safetensors_index(start)) {
    check_no_key(key, bytes);
    const auto folder = std::filesystem::path(path).parent_path();
    return {read_safetensors_index(
                bytes, [&](const std::string& shard) { return Bytes((folder / shard).string()); }),
            {}};
  }
  HEED_CHECK(!is_pickle(start),
             "path ({}) must not be a bare pickle, as torch.save wrote before "
             "PyTorch 1.6: torch.save it again with a newer one",
             path);
  HEED_CHECK(false,
             "path ({}) must be a safetensors file or its index, or what torch.save "
             "or torch.jit.save wrote; its {} bytes begin with {}",
             path, bytes.size(), in_quotes(start.substr(0, 8)));
}

}  // namespace heed::detail
