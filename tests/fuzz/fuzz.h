#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "weights/formats/bytes.h"

/// What libFuzzer calls, or replay.cpp without it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace heed::fuzz {

inline detail::Bytes bytes_of(const void* data, size_t size) {
  const auto keep = [](void* /*data*/) {};
  auto* const memory = const_cast<void*>(data);  // a storage could be written to; none is
  return {"input", c10::Storage(c10::Storage::use_byte_size_t(), size,
                                at::DataPtr(memory, memory, keep, at::kCPU))};
}

/// Whatever the input holds, `read` returns or throws c10::ValueError; any other outcome is a find.
template <typename Read>
int expect_read_or_refused(Read&& read) {
  try {
    read();
  } catch (const c10::ValueError&) {
  }
  return 0;
}

}  // namespace heed::fuzz
