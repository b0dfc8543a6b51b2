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

std::ifstream open_file(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  using Type = std::filesystem::file_type;
  if (type == Type::fifo || type == Type::character || type == Type::block ||
      type == Type::socket) {
    throw std::runtime_error("cannot read " + path + ": it is a device, a pipe or a socket");
  }
  return open_input(path);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace heed::examples
