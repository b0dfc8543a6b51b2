# SPDX-License-Identifier: BSD-3-Clause
# heed's headers compile without a warning in projects that are strict: each alone, and all together.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

find_in("${TORCH_ROOT}")
set(python_include "")
if(PYTHON)
  execute_process(COMMAND "${PYTHON}" -c "import sysconfig; print(sysconfig.get_path('include'))"
    OUTPUT_VARIABLE python_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT EXISTS "${python_include}/Python.h")
    set(python_include "")
    message(STATUS "Without bind_module: ${PYTHON} has no Python.h")
  endif()
endif()
set(build "${WORK_DIR}/build")
file(REMOVE_RECURSE "${build}")
step("Configuring" ${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/headers" -B "${build}"
  ${same_toolchain} -DCMAKE_UNITY_BUILD=OFF "-DCMAKE_CXX_FLAGS="
  "-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}" "-DDISTRIBUTED=${DISTRIBUTED}"
  "-DPYTHON_INCLUDE=${python_include}")
step("Compiling every header" ${CMAKE_COMMAND} --build "${build}" --parallel 2)
