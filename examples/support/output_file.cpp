#include "output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace heed::examples {

void check_writable(const std::string& path) {
  const bool existed = std::filesystem::exists(path);
  if (!std::ofstream(path, std::ios::app)) {
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  }
  if (!existed) std::filesystem::remove(path);
}

}  // namespace heed::examples
