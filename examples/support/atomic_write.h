#pragma once

#include <string>
#include <string_view>

namespace heed::examples {

/// Writes a file that appears whole or not at all: a process that is killed, or a disk that is
/// full, leaves what was there before. Throws std::runtime_error when it cannot be written.
void write_atomically(const std::string& path, std::string_view bytes);

}  // namespace heed::examples
