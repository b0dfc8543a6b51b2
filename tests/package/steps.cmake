# SPDX-License-Identifier: BSD-3-Clause
# Steps that the package tests share. A step that fails ends the test with what it printed.

# step(<what> <command>...): runs the command; its output is in `output`.
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message("${output}")  # as it is: an error's text would be wrapped
    message(FATAL_ERROR "${what} failed (${status}).")
  endif()
  message(STATUS "${what}: done")
  set(output "${output}" PARENT_SCOPE)
endfunction()

# configure_must_say(<sentence> <argument>...): CMake stops with that sentence.
function(configure_must_say sentence)
  execute_process(COMMAND ${CMAKE_COMMAND} ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(status EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "CMake did not stop.")
  endif()
  string(REGEX REPLACE "[ \n]+" " " unwrapped "${output}")
  string(FIND "${unwrapped}" "${sentence}" position)
  if(position EQUAL -1)
    message("${output}")
    message(FATAL_ERROR "CMake did not say: ${sentence}")
  endif()
endfunction()

# What this build was configured with, for builds of the tests' own.
set(same_toolchain
  -G "${GENERATOR}"
  "-DCMAKE_BUILD_TYPE=${CONFIG}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}"
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
  "-DCMAKE_CXX_FLAGS=${FLAGS}"
  "-DCMAKE_UNITY_BUILD=${UNITY}"
  "-DCMAKE_UNITY_BUILD_BATCH_SIZE=${UNITY_BATCH}")
if(STANDARD)
  list(APPEND same_toolchain "-DCMAKE_CXX_STANDARD=${STANDARD}")
endif()

# find_in(<prefix>...): where CMake looks for packages from here on.
function(find_in)
  list(JOIN ARGN ":" prefixes)
  set(ENV{CMAKE_PREFIX_PATH} "${prefixes}")
  unset(ENV{Torch_DIR})
endfunction()

# build_and_run_consumer(<argument>...): consumer/, configured with the arguments as well.
function(build_and_run_consumer)
  set(build "${WORK_DIR}/consumer")
  file(REMOVE_RECURSE "${build}")
  step("Configuring the consumer" ${CMAKE_COMMAND}
    -S "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/consumer" -B "${build}" ${same_toolchain} ${ARGN})
  step("Building the consumer" ${CMAKE_COMMAND} --build "${build}" --config "${CONFIG}")
  program_must_print(consumer "output [2, 5, 16], attended [2, 4, 5, 8], ones 1\n")
  if(DISTRIBUTED)
    program_must_print(distributed_consumer
      "attended [2, 4, 6, 8]\ninit_process_group: environment variable WORLD_SIZE must be set; torchrun sets it\n")
  endif()
  if(OPS)
    program_must_print(ops_consumer "attended [2, 4, 5, 8]\n")
  endif()
endfunction()

# program_must_print(<name> <text>): what the program in `build` prints.
function(program_must_print name expected)
  find_program(program ${name}
    PATHS "${build}" PATH_SUFFIXES "${CONFIG}" NO_DEFAULT_PATH NO_CACHE REQUIRED)
  step("Running ${name}" "${program}")
  if(NOT output STREQUAL expected)
    message(FATAL_ERROR "${name} printed\n${output}instead of\n${expected}")
  endif()
endfunction()
