#pragma once

#include <string>

namespace heed::examples {

/// Throws std::runtime_error when no file can take the place of `path`; touches nothing, so that a
/// process killed meanwhile leaves no empty file. For use before long work whose result goes there.
void check_writable(const std::string& path);

}  // namespace heed::examples
