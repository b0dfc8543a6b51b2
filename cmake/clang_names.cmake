# SPDX-License-Identifier: BSD-3-Clause
# From version 18 on, clang writes the constraints of templates into their names. A LibTorch that GCC or an older clang
# built has names without them, such as that of at::TensorBase::const_data_ptr, so programs could not be linked with it.
# Where that is so, heed and the programs that use it are compiled with the older names.

if(NOT CMAKE_SYSTEM_NAME STREQUAL Linux OR NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang OR
    CMAKE_CXX_COMPILER_VERSION VERSION_LESS 18 OR NOT CMAKE_NM)
  return()
endif()

# TORCH_LIBRARY is LibTorch's own; the functions are in its neighbor. Shared libraries alone have such names.
get_filename_component(folder "${TORCH_LIBRARY}" DIRECTORY)
execute_process(COMMAND "${CMAKE_NM}" -D "${folder}/libtorch_cpu.so" COMMAND grep TensorBase14const_data_ptrIf
  OUTPUT_VARIABLE names ERROR_QUIET)
if(names MATCHES "const_data_ptrIf" AND NOT names MATCHES "const_data_ptrIfTn")
  set(older_names -fclang-abi-compat=17)
  add_compile_options(${older_names})
  # For programs, which another compiler may build.
  set(heed_names_option
    "$<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:${older_names}>")
endif()
