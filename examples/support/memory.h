#pragma once

#include <string>

namespace heed::examples {

/// Throws std::runtime_error when what needs so many bytes does not fit into the machine's memory.
void check_memory(const std::string& what, double bytes);

}  // namespace heed::examples
