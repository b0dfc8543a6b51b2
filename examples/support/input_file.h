#pragma once

#include <fstream>
#include <string>

namespace heed::examples {

/// Opens a file for reading. Throws std::runtime_error when there is no such file, or when it is a
/// folder.
std::ifstream open_input(const std::string& path);

/// The same, but throws when it is a device, a pipe or a socket, too: to open those may wait for
/// ever.
std::ifstream open_file(const std::string& path);

/// Whether there is a file or a folder.
bool exists(const std::string& path);

}  // namespace heed::examples
