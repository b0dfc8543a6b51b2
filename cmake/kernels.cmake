# SPDX-License-Identifier: BSD-3-Clause
include(CheckCXXSourceCompiles)

# heed_compiles_for(<macro> <variable>): whether the compiler's target has this macro.
function(heed_compiles_for macro variable)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_compiles("
#ifndef ${macro}
#error
#endif
" heed_has${macro})
  set(${variable} "${heed_has${macro}}" PARENT_SCOPE)
endfunction()

# heed_kernel_flags(<instruction set> <variable>): the compiler's flags for the sources of src/cpu/isa.
function(heed_kernel_flags instruction_set variable)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC would load early, and then lack registers for the sums.
    set(flags_neon -fno-schedule-insns)
    # From GCC 13 on, it rounds twice in multiply-adds of short chains, which is slower, and then a result
    # depends on how rows are shared among threads.
    set(multiply_adds --param=avoid-fma-max-bits=0)
  endif()
  set(flags_neon_bf16 ${flags_neon} -march=armv8.2-a+bf16)
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512dq -mavx512bw -mavx512vl
    -mprefer-vector-width=512)
  # Every processor with AVX512-BF16 has VNNI, products of bytes.
  set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16 -mavx512vnni)
  set(flags_avx512_amx ${flags_avx512_bf16} -mamx-tile -mamx-bf16)
  set(level -O3)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=" AND NOT instruction_set STREQUAL baseline)
    # Undefined arithmetic would be the same in all sets, and looking for it doubles the time to compile.
    set(level -O2 -fno-sanitize=undefined)
  endif()
  # Kernels index arrays of a fixed size, and a call may take less than a microsecond: no checks of the stack.
  set(${variable} ${level} -fno-stack-protector -fno-math-errno -fno-trapping-math -ffp-contract=fast
    ${multiply_adds} ${flags_${instruction_set}} PARENT_SCOPE)
endfunction()

# heed_compiles_amx(<variable>): whether the compiler has AMX's tile registers.
function(heed_compiles_amx variable)
  heed_kernel_flags(avx512_amx flags)
  list(JOIN flags " " CMAKE_REQUIRED_FLAGS)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  check_cxx_source_compiles("
#include <immintrin.h>
void multiply() { _tile_dpbf16ps(0, 1, 2); }
" heed_has_amx)
  set(${variable} "${heed_has_amx}" PARENT_SCOPE)
endfunction()

# heed_add_kernels(<target> <source>...)
# Compiles the sources, those of src/cpu/isa, once an instruction set, in a namespace named after it:
# HEED_ISA. src/cpu/capability.h selects among them at run time. Sets heed_kernel_objects to all their
# objects; <target> is told which sets there are.
#
# These sources include no LibTorch, no standard library and nothing else with inline functions
# outside of their namespace: the linker might keep one as compiled for AVX-512, and then call it on
# a machine without. A test looks for such symbols.
function(heed_add_kernels target)
  if(NOT HEED_KERNELS)
    target_compile_definitions(${target} PRIVATE HEED_WITHOUT_KERNELS)
    set(heed_kernel_objects "" PARENT_SCOPE)
    set(heed_instruction_sets "" PARENT_SCOPE)
    return()
  endif()
  check_cxx_source_compiles("
typedef float Vector __attribute__((vector_size(16)));
Vector twice(Vector x) { return x + x; }
int main() {}
" heed_has_vectors)
  if(NOT heed_has_vectors)
    message(FATAL_ERROR
      "heed's kernels need the vectors of GCC and clang, which this compiler lacks: set HEED_KERNELS=OFF to build heed without kernels.")
  endif()
  # By what the compiler says: on macOS, CMAKE_SYSTEM_PROCESSOR may be another processor's.
  heed_compiles_for(__x86_64__ for_x86)
  heed_compiles_for(__aarch64__ for_arm)
  if(for_x86)
    set(instruction_sets baseline avx2 avx512 avx512_bf16)
    target_compile_definitions(${target} PRIVATE HEED_X86_KERNELS)
    heed_compiles_amx(has_amx)
    if(has_amx)
      list(APPEND instruction_sets avx512_amx)
      target_compile_definitions(${target} PRIVATE HEED_AMX_KERNELS)
    endif()
  elseif(for_arm)
    set(instruction_sets neon neon_bf16)
    target_compile_definitions(${target} PRIVATE HEED_ARM_KERNELS)
  else()
    set(instruction_sets baseline)
  endif()
  foreach(instruction_set IN LISTS instruction_sets)
    set(objects heed_kernels_${instruction_set})
    add_library(${objects} OBJECT ${ARGN})
    target_compile_features(${objects} PRIVATE cxx_std_17)
    target_compile_definitions(${objects} PRIVATE HEED_ISA=${instruction_set})
    heed_leave_out_paths(${objects})
    heed_keep_exact_floats(${objects})  # before flags that loosen what no result shows
    heed_kernel_flags(${instruction_set} flags)
    target_compile_options(${objects} PRIVATE ${flags})
    target_include_directories(${objects} PRIVATE
      "${CMAKE_CURRENT_SOURCE_DIR}/src")
    set_target_properties(${objects} PROPERTIES
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      POSITION_INDEPENDENT_CODE ON
      UNITY_BUILD OFF)
    list(APPEND kernel_objects $<TARGET_OBJECTS:${objects}>)
  endforeach()
  set(heed_kernel_objects ${kernel_objects} PARENT_SCOPE)
  set(heed_instruction_sets ${instruction_sets} PARENT_SCOPE)
endfunction()
