# SPDX-License-Identifier: BSD-3-Clause
# No installed binary names a folder of this machine: neither heed's, nor its build's, nor LibTorch's.

file(GLOB_RECURSE libraries "${SHARED_DIR}/*.so" "${STATIC_DIR}/*.a" "${STATIC_DIR}/*.so")
list(LENGTH libraries count)
if(count LESS 2)
  message(FATAL_ERROR "There are no libraries but ${libraries}.")
endif()
set(ENV{LC_ALL} C)
foreach(folder IN ITEMS "${HEED_SOURCE_DIR}" "${HEED_BINARY_DIR}" "${TORCH_ROOT}")
  if(folder STREQUAL "/usr")
    continue()  # the system's, which is there on every machine
  endif()
  string(REGEX REPLACE "([][+.*()^$?{}|\\])" "\\\\\\1" escaped "${folder}")
  foreach(library IN LISTS libraries)
    # "./include/heed" names no folder /heed.
    execute_process(
      COMMAND grep --only-matching --text --extended-regexp "(^|[^[:alnum:]_./-])${escaped}(/[[:print:]]*)?" "${library}"
      RESULT_VARIABLE status OUTPUT_VARIABLE found ERROR_VARIABLE error)
    if(status EQUAL 0)
      message("${found}")
      message(FATAL_ERROR "${library} names ${folder}.")
    elseif(NOT status EQUAL 1)
      message(FATAL_ERROR "grep failed: ${error}")
    endif()
  endforeach()
  message(STATUS "No library names ${folder}")
endforeach()
