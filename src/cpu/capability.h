// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "cpu/isa/instruction_set.h"

namespace heed::detail {

/// The instruction sets for which this build has kernels and that this processor can run; later
/// ones are faster.
const std::vector<const InstructionSet*>& instruction_sets();

/// The instruction set "none", which has no kernels: while it is in use, LibTorch's operators
/// compute everything. It is one of `instruction_sets()` only if heed is built without kernels.
const InstructionSet& no_kernels();

/// The instruction set in use: the last of `instruction_sets()`, or the one that
/// HEED_CPU_CAPABILITY names.
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
  bool wide_vectors;    ///< MKL on Intel's processors: it uses AVX-512 if they have it
  bool foreign_mkl;     ///< MKL on other processors: it uses AVX2 at best
};

/// The properties of this machine, which are determined once.
const BlasProperties& blas_properties();

}  // namespace heed::detail
