#pragma once

#include <heed/export.h>

#include <vector>

namespace heed::detail {

/// Instruction sets that kernels are compiled for; each holds those before it.
enum class CpuCapability {
  baseline,  ///< what the library is built for
  avx2,      ///< AVX2, FMA and F16C
  avx512,    ///< AVX-512 F, DQ, BW and VL
};

/// What this build and this machine have, ascending.
HEED_API std::vector<CpuCapability> cpu_capabilities();

/// The one in use: the last of `cpu_capabilities`, or what HEED_CPU_CAPABILITY names (baseline,
/// avx2 or avx512) where that is among them.
HEED_API CpuCapability cpu_capability();

/// Whether this machine multiplies bfloat16 as it is (AVX512-BF16), as LibTorch's products then do.
HEED_API bool has_bfloat16_products();

/// Puts one of `cpu_capabilities` to use, for tests.
HEED_API void set_cpu_capability(CpuCapability capability);

}  // namespace heed::detail

/// Declares the table `name` of type `Table` that a kernel source defines once an instruction set,
/// in a namespace named after it, and `name()`, which selects among them.
#ifdef HEED_X86_KERNELS
#define HEED_DECLARE_KERNELS(Table, name)                                   \
  namespace baseline {                                                      \
  extern const Table name;                                                  \
  }                                                                         \
  namespace avx2 {                                                          \
  extern const Table name;                                                  \
  }                                                                         \
  namespace avx512 {                                                        \
  extern const Table name;                                                  \
  }                                                                         \
  inline const Table& name() {                                              \
    const auto capability = cpu_capability();                               \
    if (capability == CpuCapability::avx512) {                              \
      return avx512::name;                                                  \
    }                                                                       \
    return capability == CpuCapability::avx2 ? avx2::name : baseline::name; \
  }
#else
#define HEED_DECLARE_KERNELS(Table, name) \
  namespace baseline {                    \
  extern const Table name;                \
  }                                       \
  inline const Table& name() { return baseline::name; }
#endif
