# heed_add_kernels(<target> <source>...)
# Compiles the sources, those of src/cpu/isa, once an instruction set, in a namespace named after it:
# HEED_ISA. src/cpu/capability.h selects among them at run time. Sets heed_kernel_objects to all their
# objects; <target> is told which sets there are.
#
# These sources include no LibTorch, no standard library and nothing else with inline functions
# outside of their namespace: the linker might keep one as compiled for AVX-512, and then call it on
# a machine without. A test looks for such symbols.
function(heed_add_kernels target)
  set(instruction_sets baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND instruction_sets avx2 avx512 avx512_bf16)
    set(x86_definition HEED_X86_KERNELS)
    target_compile_definitions(${target} PRIVATE ${x86_definition})
  endif()
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512dq -mavx512bw -mavx512vl
    -mprefer-vector-width=512)
  set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16)
  foreach(instruction_set IN LISTS instruction_sets)
    set(objects heed_kernels_${instruction_set})
    add_library(${objects} OBJECT ${ARGN})
    target_compile_features(${objects} PRIVATE cxx_std_17)
    target_compile_definitions(${objects} PRIVATE HEED_ISA=${instruction_set} ${x86_definition})
    target_compile_options(${objects} PRIVATE
      -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast ${flags_${instruction_set}})
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
