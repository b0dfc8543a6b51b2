#pragma once

#include <string>

namespace heed::examples {

/// Throws std::runtime_error when `path` cannot be written. Call it before long work whose result
/// goes there. It creates nothing, so that a killed process leaves no empty file.
void check_writable(const std::string& path);

}  // namespace heed::examples
