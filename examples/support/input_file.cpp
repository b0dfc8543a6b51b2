#include "input_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace heed::examples {

std::ifstream open_input(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  int reason = file ? 0 : errno;
  std::error_code ignored;
  if (file && std::filesystem::is_directory(path, ignored)) reason = EISDIR;
  if (reason != 0) throw std::runtime_error("cannot read " + path + ": " + std::strerror(reason));
  return file;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace heed::examples
