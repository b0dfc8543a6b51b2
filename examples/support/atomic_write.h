#pragma once

#include <string>
#include <string_view>

namespace heed::examples {

/// Writes a file completely or not at all: if the process is killed or the disk is full, the old
/// file stays. Data goes to a new file beside it, which is then renamed; a link is followed. Throws
/// std::runtime_error when it cannot be written, or when it is no file.
void write_atomically(const std::string& path, std::string_view bytes);

}  // namespace heed::examples
