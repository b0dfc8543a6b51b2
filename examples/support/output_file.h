#pragma once

#include <string>

namespace heed::examples {

/// Throws std::runtime_error when `path` cannot be written; leaves the file as it was. For use
/// before long work whose result goes there.
void check_writable(const std::string& path);

}  // namespace heed::examples
