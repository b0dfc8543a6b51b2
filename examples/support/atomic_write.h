#pragma once

#include <string>
#include <string_view>

namespace heed::examples {

/// Writes a file completely or not at all: if the process is killed or the disk is full, the old
/// file stays. Throws std::runtime_error when it cannot be written.
void write_atomically(const std::string& path, std::string_view bytes);

}  // namespace heed::examples
