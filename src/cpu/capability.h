#pragma once

#include <vector>

#include "cpu/isa/instruction_set.h"

namespace heed::detail {

/// Those that this build has kernels for and this processor runs; later ones are faster.
const std::vector<const InstructionSet*>& instruction_sets();

/// The one whose kernels are in use: the last of them, or the one that HEED_CPU_CAPABILITY names.
const InstructionSet& instruction_set();

/// Puts another one to use while the object lives, in all threads. For tests.
class ScopedInstructionSet {
 public:
  explicit ScopedInstructionSet(const InstructionSet& set);
  ~ScopedInstructionSet();
  ScopedInstructionSet(const ScopedInstructionSet&) = delete;
  ScopedInstructionSet& operator=(const ScopedInstructionSet&) = delete;

 private:
  const InstructionSet& previous_;
};

/// What LibTorch's own matrix products have on this machine.
struct BlasProperties {
  bool bfloat16_tiles;  ///< tiles of bfloat16 (AMX)
  bool wide_vectors;    ///< AVX-512 where the processor has it: MKL uses it on Intel's alone
};

/// Found once.
const BlasProperties& blas_properties();

}  // namespace heed::detail
