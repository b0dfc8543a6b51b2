#include <caffe2/serialize/inline_container.h>

#include <string>

#include "fuzz.h"
#include "weights/formats/pytorch_file.h"

namespace {

/// A sound archive round a pickle: mutations of a whole archive seldom get this far.
std::string archive_of(const void* pickle, size_t size) {
  const std::string code =
      "class M(Module):\n  __parameters__ = [\"x\", ]\n  __buffers__ = [\"y\", ]\n";
  const float numbers[] = {0, 1, 2, 3, 4, 5};
  std::string archive;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t count) {
    archive.append(static_cast<const char*>(bytes), count);
    return count;
  });
  writer.writeRecord("data.pkl", pickle, size);
  writer.writeRecord("data/0", numbers, sizeof(numbers));
  writer.writeRecord("code/__torch__.py", code.data(), code.size());
  writer.writeEndOfFile();
  return archive;
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
