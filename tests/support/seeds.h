// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace heed::test {

/// The number to give a generator of random numbers as `seed`: HEED_TEST_SEED, an integer, is added
/// to every seed. A test that passes by chance fails with another.
uint64_t moved(uint64_t seed);

}  // namespace heed::test
