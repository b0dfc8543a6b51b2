#include "cpu/capability.h"

#ifdef HEED_X86_KERNELS
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace heed::detail {

namespace {

CpuCapability widest() {
#ifdef HEED_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return __builtin_cpu_supports("avx512bf16") ? CpuCapability::avx512_bf16
                                                : CpuCapability::avx512;
  }
  // Every CPU with AVX2 and FMA has F16C, which older compilers cannot ask for.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return CpuCapability::avx2;
#endif
  return CpuCapability::baseline;
}

CpuCapability named_or(CpuCapability otherwise) {
  const char* variable = std::getenv("HEED_CPU_CAPABILITY");
  const std::string_view name = variable == nullptr ? "" : variable;
  auto named = otherwise;
  if (name == "baseline") named = CpuCapability::baseline;
  if (name == "avx2") named = CpuCapability::avx2;
  if (name == "avx512") named = CpuCapability::avx512;
  return named < otherwise ? named : otherwise;
}

std::atomic<CpuCapability>& in_use() {
  static std::atomic<CpuCapability> capability{named_or(widest())};
  return capability;
}

}  // namespace

std::vector<CpuCapability> cpu_capabilities() {
  std::vector<CpuCapability> result;
  for (const auto capability : {CpuCapability::baseline, CpuCapability::avx2, CpuCapability::avx512,
                                CpuCapability::avx512_bf16}) {
    if (capability <= widest()) result.push_back(capability);
  }
  return result;
}

bool has_bfloat16_tiles() {
#ifdef HEED_X86_KERNELS
  // Not every compiler can be asked for AMX.
  constexpr unsigned kAmxBf16 = 1U << 22;
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
#else
  return false;
#endif
}

bool has_fast_blas() {
#ifdef HEED_X86_KERNELS
  return __builtin_cpu_is("intel") != 0;
#else
  return true;
#endif
}

CpuCapability cpu_capability() { return in_use().load(std::memory_order_relaxed); }

void set_cpu_capability(CpuCapability capability) { in_use() = capability; }

}  // namespace heed::detail
