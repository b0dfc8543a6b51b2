#pragma once

#include "cpu/isa/decode.h"
#include "cpu/isa/few_rows.h"
#include "cpu/isa/layers.h"
#include "cpu/isa/matrix.h"
#include "cpu/isa/scores.h"

namespace heed::detail {

/// What kernels compiled for a set of instructions can do, and where they are.
struct InstructionSet {
  const char* name;          ///< of the namespace that they are in, and in HEED_CPU_CAPABILITY
  int64_t vector_bytes;      ///< of a register
  int64_t registers;         ///< for vectors; with 32, nothing but multiply-adds bounds a product
  bool converts_half;        ///< float16 to and from float32 by instructions
  bool multiplies_bfloat16;  ///< MatrixKernels::of_pairs is there
  const DecodeKernels& decode;
  const FewRowsKernels& few_rows;
  const LayerKernels& layers;
  const MatrixKernels& matrix;
  const ScoreKernels& scores;
};

#ifdef HEED_ISA  // the set that a file of this folder is compiled for
namespace HEED_ISA {
extern const DecodeKernels decode_kernels;
extern const FewRowsKernels few_rows_kernels;
extern const LayerKernels layer_kernels;
extern const MatrixKernels matrix_kernels;
extern const ScoreKernels score_kernels;
extern const InstructionSet instruction_set;
}  // namespace HEED_ISA
#endif

}  // namespace heed::detail
