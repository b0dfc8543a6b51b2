// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

namespace heed::examples {

/// A number that differs between different bytes: FNV-1a, by Fowler, Noll and Vo. `before` is the
/// fingerprint of bytes before these.
inline uint64_t fingerprint(std::string_view bytes, uint64_t before = 0xcbf29ce484222325U) {
  for (const auto byte : bytes) {
    before = (before ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  return before;
}

}  // namespace heed::examples
