// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pytorch_file.h"

#include "fuzz.h"

/// The input is a whole zip archive.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = heed::fuzz::bytes_of(data, size);
  return heed::fuzz::expect_read_or_refused([&] {
    const heed::detail::ZipDirectory directory(bytes);
    heed::fuzz::read_all(heed::detail::read_pytorch_file(directory, "").tensors);
  });
}
