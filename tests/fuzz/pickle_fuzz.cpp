// SPDX-License-Identifier: BSD-3-Clause
#include <string>

#include "fuzz.h"
#include "support/pickles.h"
#include "weights/formats/pytorch_file.h"

namespace {

/// A sound archive round a pickle: mutations of a whole archive seldom get this far.
std::string archive_of(const void* pickle, size_t size) {
  using namespace heed::test;
  return pickles::archive_of(
      {{"data.pkl", {static_cast<const char*>(pickle), size}},
       {"data/0", pickles::numbers_to(6)},
       {"code/__torch__.py",
        "class M(Module):\n  __parameters__ = [\"x\", ]\n  __buffers__ = [\"y\", ]\n"}});
}

}  // namespace

/// The input is the pickle of a PyTorch file; a checkpoint's weights may be under "m".
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto archive = archive_of(data, size);
  const auto bytes = heed::fuzz::bytes_of(archive.data(), archive.size());
  const heed::detail::ZipDirectory directory(bytes);
  for (const auto* key : {"", "m"}) {
    heed::fuzz::expect_read_or_refused(
        [&] { heed::fuzz::read_all(heed::detail::read_pytorch_file(directory, key).tensors); });
  }
  return 0;
}
