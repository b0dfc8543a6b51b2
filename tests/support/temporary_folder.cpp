// SPDX-License-Identifier: BSD-3-Clause
#include "support/temporary_folder.h"

#include <ftw.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace heed::test {

TemporaryFolder::TemporaryFolder(const std::string& name) {
  const char* const given = std::getenv("TMPDIR");
  auto path = std::string(given == nullptr ? "/tmp" : given) + "/heed_" + name + "_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no folder " + path);
  path_ = path;
}

// LibTorch's wheels for CUDA export std::filesystem::remove_all, and theirs crashes in programs
// that are compiled by g++ 13.
TemporaryFolder::~TemporaryFolder() {
  constexpr int kOpenFolders = 16;
  const auto remove = [](const char* path, const struct stat* /*status*/, int /*type*/,
                         struct FTW* /*place*/) { return std::remove(path); };
  ::nftw(path_.c_str(), remove, kOpenFolders, FTW_DEPTH | FTW_PHYS);
}

}  // namespace heed::test
