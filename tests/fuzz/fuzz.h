// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>
#include <heed/named_tensors.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "weights/formats/file_tensors.h"

/// The function that libFuzzer calls, or replay.cpp without it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace heed::fuzz {

/// A file of these bytes, in memory.
inline detail::Bytes bytes_of(const void* data, size_t size) {
  const int file = ::memfd_create("input", 0);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  detail::Bytes bytes("/proc/self/fd/" + std::to_string(file));
  ::close(file);
  return bytes;
}

/// Reads all values.
inline void read_all(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) detail::with_values(tensor).clone();
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
