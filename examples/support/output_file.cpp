#include "output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace heed::examples {

void check_writable(const std::string& path) {
  const std::filesystem::path target(path);
  const auto folder = target.has_parent_path() ? target.parent_path() : ".";
  int reason = ::access(folder.c_str(), W_OK) == 0 ? 0 : errno;
  if (std::filesystem::is_directory(target)) reason = EISDIR;
  if (reason != 0) throw std::runtime_error("cannot write " + path + ": " + std::strerror(reason));
}

}  // namespace heed::examples
