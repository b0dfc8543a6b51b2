# SPDX-License-Identifier: BSD-3-Clause
# Where a library is not built, nothing is installed, and the target that the error names builds them all.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
set(build "${WORK_DIR}/build")
step("Configuring heed" ${CMAKE_COMMAND} -S "${HEED_SOURCE_DIR}" -B "${build}" ${same_toolchain}
  "-DTorch_DIR=${TORCH_DIR}"
  -DHEED_BUILD_TESTS=OFF -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF)

function(install_must_stop_at library)
  configure_must_say(
    "${library} is not built: run 'cmake --build ${build} --target heed_libraries' first, then install."
    --install "${build}" --config "${CONFIG}" --prefix "${WORK_DIR}/installed")
  if(EXISTS "${WORK_DIR}/installed")
    message(FATAL_ERROR "Something was installed without ${library}.")
  endif()
endfunction()

install_must_stop_at(heed)
if(NOT GENERATOR STREQUAL Ninja)
  return()
endif()
file(TOUCH "${build}/libheed.a")
set(libraries libheed.a)
if(DISTRIBUTED)
  install_must_stop_at(heed_distributed)
  file(TOUCH "${build}/libheed_distributed.a")
  list(APPEND libraries libheed_distributed.a)
endif()
if(OPS)
  install_must_stop_at(heed_ops)
  list(APPEND libraries libheed_ops)
endif()

find_program(ninja NAMES ninja ninja-build NO_CACHE REQUIRED)
step("Listing what heed_libraries builds" "${ninja}" -C "${build}" -t commands heed_libraries)
foreach(library IN LISTS libraries)
  string(FIND "${output}" "${library}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "heed_libraries does not build ${library}.")
  endif()
endforeach()
