#pragma once

#include <heed/export.h>

#include <vector>

namespace heed::detail {

/// Instruction sets that kernels are compiled for; each holds those before it.
enum class CpuCapability {
  baseline,     ///< what the library is built for
  avx2,         ///< AVX2, FMA and F16C
  avx512,       ///< AVX-512 F, DQ, BW and VL
  avx512_bf16,  ///< products of bfloat16 too
};

/// What this build and this machine have, ascending.
HEED_API std::vector<CpuCapability> cpu_capabilities();

/// The one in use: the last of `cpu_capabilities`, or what HEED_CPU_CAPABILITY names (baseline,
/// avx2, avx512) where that is among them.
HEED_API CpuCapability cpu_capability();

/// Whether this machine multiplies tiles of bfloat16 (AMX), as LibTorch's products then do.
HEED_API bool has_bfloat16_tiles();

/// Whether LibTorch's BLAS, MKL, uses AVX-512 here where the processor has it: on Intel's alone.
HEED_API bool has_fast_blas();

/// Puts one of `cpu_capabilities` to use, for tests.
HEED_API void set_cpu_capability(CpuCapability capability);

}  // namespace heed::detail

/// Declares the table `name` of type `Table` that a kernel source defines once an instruction set,
/// in a namespace named after it, and `name()`, which selects among them.
#ifdef HEED_X86_KERNELS
#define HEED_DECLARE_KERNELS(Table, name) \
  namespace baseline {                    \
  extern const Table name;                \
  }                                       \
  namespace avx2 {                        \
  extern const Table name;                \
  }                                       \
  namespace avx512 {                      \
  extern const Table name;                \
  }                                       \
  namespace avx512_bf16 {                 \
  extern const Table name;                \
  }                                       \
  inline const Table& name() {            \
    switch (cpu_capability()) {           \
      case CpuCapability::avx512_bf16:    \
        return avx512_bf16::name;         \
      case CpuCapability::avx512:         \
        return avx512::name;              \
      case CpuCapability::avx2:           \
        return avx2::name;                \
      default:                            \
        return baseline::name;            \
    }                                     \
  }
#else
#define HEED_DECLARE_KERNELS(Table, name) \
  namespace baseline {                    \
  extern const Table name;                \
  }                                       \
  inline const Table& name() { return baseline::name; }
#endif
