# SPDX-License-Identifier: BSD-3-Clause
# heed_keep_exact_floats(<target>...)
# heed hides by -inf, and lets what is seen show, NaN too: without NaN and infinity it computes
# something else. So -ffast-math, -Ofast and their parts, which a project may give to all it builds, are
# taken back for heed's own sources. Its headers compute nothing with floating numbers.
set(heed_exact_floats "")
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang|IntelLLVM")
  set(heed_exact_floats -fno-fast-math -fno-finite-math-only -fno-unsafe-math-optimizations
    -fno-associative-math -fno-reciprocal-math -fsigned-zeros)
elseif("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE}" MATCHES "/fp:fast|fast=2")
  message(FATAL_ERROR
    "heed needs NaN and infinity: leave the flag for fast floating-point numbers out of CMAKE_CXX_FLAGS.")
endif()

function(heed_keep_exact_floats)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE ${heed_exact_floats})
  endforeach()
endfunction()
