// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/decode.h"
#include "cpu/isa/few_rows.h"
#include "cpu/isa/layers.h"
#include "cpu/isa/matrix.h"
#include "cpu/isa/packed.h"
#include "cpu/isa/packed_quads.h"
#include "cpu/isa/scores.h"

namespace heed::detail {

/// The kernels that were compiled for an instruction set, and its properties.
struct InstructionSet {
  const char* name;          ///< of the set in HEED_CPU_CAPABILITY, and of the kernels' namespace
  int64_t vector_bytes;      ///< size of a vector register
  int64_t registers;         ///< number of vector registers; 32 let multiply-adds bound a product
  bool converts_half;        ///< whether it has instructions for float16 to and from float32
  bool multiplies_bfloat16;  ///< whether it has bfloat16 products, so MatrixKernels::of_pairs
  bool has_tile_registers;   ///< whether it multiplies bfloat16 in tile registers (AMX)
  bool multiplies_bytes;  ///< whether products of bytes are its fastest, so MatrixKernels::of_quads
  const DecodeKernels& decode;
  const FewRowsKernels& few_rows;
  const LayerKernels& layers;
  const MatrixKernels& matrix;
  const PackedKernels& packed;
  const PackedQuadKernels& packed_quads;
  const ScoreKernels& scores;
};

#ifdef HEED_ISA  // the instruction set for which a file of this folder is compiled
namespace HEED_ISA {
extern const DecodeKernels decode_kernels;
extern const FewRowsKernels few_rows_kernels;
extern const LayerKernels layer_kernels;
extern const MatrixKernels matrix_kernels;
extern const PackedKernels packed_kernels;
extern const PackedQuadKernels packed_quad_kernels;
extern const ScoreKernels score_kernels;
extern const InstructionSet instruction_set;
}  // namespace HEED_ISA
#endif

}  // namespace heed::detail
