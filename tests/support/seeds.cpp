// SPDX-License-Identifier: BSD-3-Clause
#include "support/seeds.h"

#include <cstdlib>
#include <iostream>

namespace heed::test {

namespace {

/// Wraps around below 0, as the sum does.
uint64_t read_move() {
  const char* text = std::getenv("HEED_TEST_SEED");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const auto move = std::strtoll(text, &end, 10);
  if (end != text && *end == '\0') return static_cast<uint64_t>(move);
  std::cerr << "HEED_TEST_SEED (" << text << ") must be an integer\n";
  std::exit(2);
}

}  // namespace

uint64_t moved(uint64_t seed) {
  static const auto move = read_move();
  return seed + move;
}

}  // namespace heed::test
