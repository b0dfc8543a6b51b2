// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pt2_file.h"

#include <string>

#include "fuzz.h"
#include "support/pickles.h"

namespace {

using heed::test::pickles::archive_of;

/// The file that torch.save writes of torch.arange(6.0).
std::string saved_tensor() {
  constexpr char kPickle[] =
      "\x80\2ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
      "X\1\0\0\0000X\3\0\0\0cpuK\6tQK\0K\6\x85K\1\x85\x89}tR.";
  return archive_of(
      {{"data.pkl", {kPickle, sizeof(kPickle) - 1}}, {"data/0", std::string(24, '\0')}});
}

void read(const void* data, size_t size, const char* key) {
  const auto bytes = heed::fuzz::bytes_of(data, size);
  heed::fuzz::expect_read_or_refused([&] {
    const heed::detail::ZipDirectory directory(bytes);
    heed::fuzz::read_all(heed::detail::read_pt2_file(directory, key).tensors);
  });
}

}  // namespace

/// The input is a whole archive; or a config in a sound archive, which mutations of a whole one
/// seldom reach.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  if (heed::detail::is_archive(input)) {
    read(data, size, "");
    return 0;
  }
  static const std::string saved = saved_tensor();
  const auto archive =
      archive_of({{"archive_format", "pt2"},
                  {"data/weights/weight_0", std::string(24, '\1')},
                  {"data/weights/weight_1", saved},
                  {"models/exported.json", ""},
                  {"data/weights/exported_weights_config.json", input},
                  {"data/constants/exported_constants_config.json", R"({"config": {}})"},
                  {"data/aotinductor/compiled/weights_config.json", input}});
  for (const auto* key : {"exported", "compiled"}) read(archive.data(), archive.size(), key);
  return 0;
}
