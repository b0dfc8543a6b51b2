// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/capability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

namespace heed::test {
namespace {

TEST(InstructionSets, SayWhatTheyCanDo) {
  const auto& sets = detail::instruction_sets();
  ASSERT_FALSE(sets.empty());
  const std::set<std::string> baselines = {"baseline", "neon"};
  EXPECT_EQ(baselines.count(sets.front()->name), 1U) << sets.front()->name;
  std::set<std::string> names;
  int64_t vector_bytes = 16;
  for (const auto* set : sets) {
    EXPECT_TRUE(names.insert(set->name).second) << set->name;
    EXPECT_GE(set->vector_bytes, vector_bytes) << set->name;  // later ones are faster
    vector_bytes = set->vector_bytes;
    // Kernels of pairs are there exactly where the set says so.
    EXPECT_EQ(set->matrix.of_pairs.multiply != nullptr, set->multiplies_bfloat16) << set->name;
    EXPECT_EQ(set->matrix.of_quads.multiply != nullptr, set->multiplies_bytes) << set->name;
    EXPECT_EQ(set->packed_quads.quantize != nullptr, set->multiplies_bytes) << set->name;
    EXPECT_EQ(set->multiplies_bytes, std::string(set->name) == "avx512_bf16") << set->name;
    EXPECT_EQ(set->has_tile_registers, std::string(set->name) == "avx512_amx") << set->name;
    for (const auto type : {detail::ElementType::float32, detail::ElementType::bfloat16,
                            detail::ElementType::float16}) {
      EXPECT_NE(set->decode.of[static_cast<size_t>(type)].attend, nullptr) << set->name;
    }
    EXPECT_EQ(set->decode.of[static_cast<size_t>(detail::ElementType::float64)].attend, nullptr);
  }
}

TEST(InstructionSets, OneIsInUse) {
  const auto& before = detail::instruction_set();
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    EXPECT_EQ(&detail::instruction_set(), set);
  }
  EXPECT_EQ(&detail::instruction_set(), &before);
}

/// CTest runs it once more for each name that HEED_CPU_CAPABILITY may have.
TEST(InstructionSets, AreHeldBackByTheEnvironment) {
  const char* name = std::getenv("HEED_CPU_CAPABILITY");
  const auto& sets = detail::instruction_sets();
  const auto named = std::find_if(sets.begin(), sets.end(), [&](const auto* set) {
    return name != nullptr && std::string(name) == set->name;
  });
  const auto* expected = named == sets.end() ? sets.back() : *named;
  if (name != nullptr && std::string(name) == "none") expected = &detail::no_kernels();
  EXPECT_EQ(&detail::instruction_set(), expected);
  EXPECT_EQ(detail::has_kernels(), expected != &detail::no_kernels());
}

TEST(BlasProperties, AreFoundOnce) {
  EXPECT_EQ(&detail::blas_properties(), &detail::blas_properties());
}

}  // namespace
}  // namespace heed::test
