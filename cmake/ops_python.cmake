# SPDX-License-Identifier: BSD-3-Clause
# heed_add_ops_test(<name> <script> <argument>...): a Python script that loads libheed_ops.so, which
# --library names. It is skipped where Python's torch is not the LibTorch that heed is built with.
include("${CMAKE_CURRENT_LIST_DIR}/python.cmake")

set(skipped_ops_test "no Python was found\; set HEED_PYTHON to one that has torch ${Torch_VERSION}")
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  set(skipped_ops_test "sanitizers must be loaded before Python")
elseif(python)
  execute_process(
    COMMAND "${python}" -c "import importlib.metadata; print(importlib.metadata.version('torch'))"
    OUTPUT_VARIABLE python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REGEX REPLACE "[+].*" "" python_torch "${python_torch}")
  set(skipped_ops_test "")
  if(NOT python_torch)
    set(skipped_ops_test "${python} has no torch\; set HEED_PYTHON to one that has")
  elseif(NOT python_torch VERSION_EQUAL Torch_VERSION)
    set(skipped_ops_test "${python} has torch ${python_torch}, and heed is built with ${Torch_VERSION}")
  endif()
endif()

function(heed_add_ops_test name script)
  if(skipped_ops_test)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${skipped_ops_test}")
  else()
    add_test(NAME ${name}
      COMMAND "${python}" "${script}" --library "$<TARGET_FILE:heed_ops>" ${ARGN})
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT 300 SKIP_RETURN_CODE 77 SKIP_REGULAR_EXPRESSION "^skipped: ")
endfunction()
