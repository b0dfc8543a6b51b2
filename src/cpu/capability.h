#pragma once

#include <vector>

#include "cpu/isa/instruction_set.h"

namespace heed::detail {

/// The instruction sets for which this build has kernels and that this processor can run; later
/// ones are faster.
const std::vector<const InstructionSet*>& instruction_sets();

/// Stands for no kernels at all: where it is in use, LibTorch's operators compute everything. It is
/// none of the above, but where heed is built without kernels, which then is the only one.
const InstructionSet& no_kernels();

/// The instruction set in use: the last of these, or the one that HEED_CPU_CAPABILITY names.
const InstructionSet& instruction_set();

inline bool has_kernels() { return &instruction_set() != &no_kernels(); }

/// Uses another instruction set in all threads while this object exists. For tests.
class ScopedInstructionSet {
 public:
  explicit ScopedInstructionSet(const InstructionSet& set);
  ~ScopedInstructionSet();
  ScopedInstructionSet(const ScopedInstructionSet&) = delete;
  ScopedInstructionSet& operator=(const ScopedInstructionSet&) = delete;

 private:
  const InstructionSet& previous_;
};

/// The instructions that LibTorch's own matrix products use on this machine.
struct BlasProperties {
  bool bfloat16_tiles;  ///< tiles of bfloat16 (AMX)
  bool wide_vectors;    ///< AVX-512 if the processor has it and is Intel's: MKL uses it only there
  bool foreign_mkl;     ///< MKL on a processor that is not Intel's: it uses AVX2 at best
};

/// Determined once.
const BlasProperties& blas_properties();

}  // namespace heed::detail
