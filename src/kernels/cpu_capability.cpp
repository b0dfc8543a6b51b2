#include "kernels/cpu_capability.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace heed::detail {

namespace {

CpuCapability widest() {
#ifdef HEED_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return CpuCapability::avx512;
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
  return named < otherwise ? named : otherwise;
}

std::atomic<CpuCapability>& in_use() {
  static std::atomic<CpuCapability> capability{named_or(widest())};
  return capability;
}

}  // namespace

std::vector<CpuCapability> cpu_capabilities() {
  std::vector<CpuCapability> result;
  for (const auto capability :
       {CpuCapability::baseline, CpuCapability::avx2, CpuCapability::avx512}) {
    if (capability <= widest()) result.push_back(capability);
  }
  return result;
}

bool has_bfloat16_products() {
#ifdef HEED_X86_KERNELS
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

CpuCapability cpu_capability() { return in_use().load(std::memory_order_relaxed); }

void set_cpu_capability(CpuCapability capability) { in_use() = capability; }

}  // namespace heed::detail
