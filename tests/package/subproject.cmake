# SPDX-License-Identifier: BSD-3-Clause
# Uses heed's sources through add_subdirectory; find_package.cmake installs what it builds.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

find_in("${TORCH_ROOT}")
build_and_run_consumer("-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}"
  "-DBUILD_SHARED_LIBS=${SHARED}" -DHEED_INSTALL=ON
  -DHEED_BUILD_DISTRIBUTED=ON -DHEED_BUILD_OPS=ON)

file(STRINGS "${WORK_DIR}/consumer/CMakeCache.txt" built REGEX "^HEED_BUILD_.*=ON")
list(FILTER built EXCLUDE REGEX "DISTRIBUTED|OPS")
if(built)
  message(FATAL_ERROR "As a subproject heed also builds ${built}.")
endif()
