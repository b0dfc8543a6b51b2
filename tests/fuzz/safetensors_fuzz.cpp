// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/safetensors.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = heed::fuzz::bytes_of(data, size);
  return heed::fuzz::expect_read_or_refused(
      [&] { heed::fuzz::read_all(heed::detail::read_safetensors(bytes).tensors); });
}
