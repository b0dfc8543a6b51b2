# SPDX-License-Identifier: BSD-3-Clause
# With HEED_HARDENING, what is compiled and linked from here on has what Linux distributions ask of programs: errors
# in memory end a program before they can be used against it. Kernels have no stack protector (kernels.cmake).

if(NOT HEED_HARDENING OR NOT CMAKE_SYSTEM_NAME STREQUAL Linux OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  return()
endif()
set(configurations Release RelWithDebInfo MinSizeRel)  # optimized, without which glibc does not check its functions
set(given_flags "${CMAKE_CXX_FLAGS}")
foreach(configuration IN LISTS configurations)
  string(TOUPPER "${configuration}" configuration)
  string(APPEND given_flags " ${CMAKE_CXX_FLAGS_${configuration}}")
endforeach()
# Sanitizers find more, but not in functions that check themselves.
if(given_flags MATCHES "-fsanitize=" OR HEED_BUILD_FUZZERS)
  return()
endif()

# heed_fortifies(<level> <variable>): whether the compiler and the C library check functions at this level.
function(heed_fortifies level variable)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  set(CMAKE_REQUIRED_QUIET ON)
  set(CMAKE_REQUIRED_FLAGS "-O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level}")
  check_cxx_source_compiles("
#include <cstdlib>
#if __USE_FORTIFY_LEVEL != ${level}
#error
#endif
" heed_fortifies_${level})
  set(${variable} "${heed_fortifies_${level}}" PARENT_SCOPE)
endfunction()

include(CheckCXXSourceCompiles)
if(NOT given_flags MATCHES "_FORTIFY_SOURCE")  # a level that a person chose stays
  foreach(level IN ITEMS 3 2)
    heed_fortifies(${level} fortifies)
    if(fortifies)
      list(JOIN configurations "," configurations)
      add_compile_options("$<$<CONFIG:${configurations}>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${level}>")
      break()
    endif()
  endforeach()
endif()
add_compile_options(-fstack-protector-strong
  "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:POSITION_INDEPENDENT_CODE>>>:-fPIE>")
# Tables that the loader fills are read-only afterwards, so it fills them at once.
add_link_options(LINKER:-z,relro,-z,now "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>")
