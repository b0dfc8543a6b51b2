// SPDX-License-Identifier: BSD-3-Clause
// Gives each file of a corpus to a fuzz target once: what libFuzzer does with `-runs=0`.

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "fuzz.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " FOLDER\n";
    return 2;
  }
  int count = 0;
  for (const auto& item : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(item.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::cout << item.path().filename().string() << '\n';
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++count;
  }
  std::cout << count << " inputs\n";
  return count > 0 ? 0 : 1;
}
