// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/capability.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#if defined(HEED_X86_KERNELS)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(HEED_ARM_KERNELS) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(HEED_ARM_KERNELS) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

// Finds the instruction sets that this processor can run, once, and chooses the one in use:
//
//   sets = the builds of cpu/isa that the processor can run, the fastest last
//   set in use = the set that HEED_CPU_CAPABILITY names, or "none"; otherwise the last of the sets
//
// On x86, the compiler's built-in functions and CPUID say what the processor has; on ARM, the
// operating system does. Both are asked once. docs/kernels.md, Instruction sets.

namespace heed::detail {

// The sources in cpu/isa define an `instruction_set` in the namespace of each build.
#if defined(HEED_ARM_KERNELS)
namespace neon {
extern const InstructionSet instruction_set;
}
namespace neon_bf16 {
extern const InstructionSet instruction_set;
}
#elif !defined(HEED_WITHOUT_KERNELS)
namespace baseline {
extern const InstructionSet instruction_set;
}
#endif
#ifdef HEED_X86_KERNELS
namespace avx2 {
extern const InstructionSet instruction_set;
}
namespace avx512 {
extern const InstructionSet instruction_set;
}
namespace avx512_bf16 {
extern const InstructionSet instruction_set;
}
#endif
#ifdef HEED_AMX_KERNELS
namespace avx512_amx {
extern const InstructionSet instruction_set;
}
#endif

namespace {

bool has_bfloat16_tiles() {
#ifdef HEED_X86_KERNELS
  // A bit of CPUID, because the built-in function of older compilers does not know AMX.
  constexpr unsigned kAmxBf16 = 1U << 22;
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
#else
  return false;
#endif
}

#if defined(HEED_WITHOUT_KERNELS)

std::vector<const InstructionSet*> find_instruction_sets() { return {&no_kernels()}; }

#elif defined(HEED_ARM_KERNELS)

bool multiplies_bfloat16() {
#if defined(__linux__)
  constexpr unsigned long kBFloat16 = 1UL << 14;  // HWCAP2_BF16, which older headers lack
  return (getauxval(AT_HWCAP2) & kBFloat16) != 0;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}

std::vector<const InstructionSet*> find_instruction_sets() {
  std::vector<const InstructionSet*> sets = {&neon::instruction_set};
  if (multiplies_bfloat16()) sets.push_back(&neon_bf16::instruction_set);
  return sets;
}

#else

#ifdef HEED_AMX_KERNELS
/// Asks Linux for tile registers, for all threads of the process: it saves them only after that.
bool may_use_tile_registers() {
#ifdef __linux__
  constexpr unsigned kTileRegisters = 1U << 24;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTileRegisters) != 0 &&
         syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#endif

std::vector<const InstructionSet*> find_instruction_sets() {
  std::vector<const InstructionSet*> sets = {&baseline::instruction_set};
#ifdef HEED_X86_KERNELS
  // Every CPU with AVX2 and FMA has F16C, which the built-in function of older compilers does
  // not know.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back(&avx2::instruction_set);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    sets.push_back(&avx512::instruction_set);
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
      sets.push_back(&avx512_bf16::instruction_set);
#ifdef HEED_AMX_KERNELS
      if (has_bfloat16_tiles() && may_use_tile_registers()) {
        sets.push_back(&avx512_amx::instruction_set);
      }
#endif
    }
  }
#endif
  return sets;
}

#endif

const InstructionSet* initial_instruction_set() {
  const auto& sets = instruction_sets();
  const char* variable = std::getenv("HEED_CPU_CAPABILITY");
  if (variable == nullptr || *variable == '\0') return sets.back();
  std::string names;
  for (const auto* set : sets) {
    if (std::string_view(set->name) == variable) return set;
    names += names.empty() ? set->name : std::string(", ") + set->name;
  }
  if (std::string_view(no_kernels().name) == variable) return &no_kernels();
  TORCH_WARN("heed: HEED_CPU_CAPABILITY (", variable, ") is ignored: this machine has ", names);
  return sets.back();
}

std::atomic<const InstructionSet*>& in_use() {
  static std::atomic<const InstructionSet*> set{initial_instruction_set()};
  return set;
}

bool is_intel() {
#ifdef HEED_X86_KERNELS
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

const InstructionSet& no_kernels() {
  static const DecodeKernels decode{};
  static const FewRowsKernels few_rows{};
  static const LayerKernels layers{};
  static const MatrixKernels matrix{};
  static const PackedKernels packed{};
  static const PackedQuadKernels packed_quads{};
  static const ScoreKernels scores{};
  static const InstructionSet none = {
      "none", /*vector_bytes=*/0, /*registers=*/0, false,  false,  false,        false,
      decode, few_rows,           layers,          matrix, packed, packed_quads, scores};
  return none;
}

const std::vector<const InstructionSet*>& instruction_sets() {
  static const auto sets = find_instruction_sets();
  return sets;
}

const InstructionSet& instruction_set() { return *in_use().load(std::memory_order_relaxed); }

ScopedInstructionSet::ScopedInstructionSet(const InstructionSet& set)
    : previous_(instruction_set()) {
  in_use() = &set;
}

ScopedInstructionSet::~ScopedInstructionSet() { in_use() = &previous_; }

const BlasProperties& blas_properties() {
  static const BlasProperties properties = {has_bfloat16_tiles(), is_intel() && at::hasMKL(),
                                            !is_intel() && at::hasMKL()};
  return properties;
}

}  // namespace heed::detail
