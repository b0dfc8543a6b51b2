// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/instruction_set.h"

#include "cpu/isa/simd.h"

#define HEED_STRING(text) #text
#define HEED_NAME_OF(macro) HEED_STRING(macro)

namespace heed::detail::HEED_ISA {

const InstructionSet instruction_set = {
    HEED_NAME_OF(HEED_ISA), kVectorBytes,      kRegisters,       kConvertsHalf,
    kMultipliesBFloat16,    kHasTileRegisters, kMultipliesBytes, decode_kernels,
    few_rows_kernels,       layer_kernels,     matrix_kernels,   packed_kernels,
    packed_quad_kernels,    score_kernels};

}  // namespace heed::detail::HEED_ISA
