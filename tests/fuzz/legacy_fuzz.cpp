// SPDX-License-Identifier: BSD-3-Clause
#include "fuzz.h"
#include "weights/formats/legacy_file.h"

/// The input is a whole file of torch.save before version 1.6; a checkpoint's weights may be under
/// "m".
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = heed::fuzz::bytes_of(data, size);
  for (const auto* key : {"", "m"}) {
    heed::fuzz::expect_read_or_refused(
        [&] { heed::fuzz::read_all(heed::detail::read_legacy_file(bytes, key).tensors); });
  }
  return 0;
}
