# SPDX-License-Identifier: BSD-3-Clause
# Builds heed without its own kernels, as for a compiler that lacks the vector extension.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

find_in("${TORCH_ROOT}")
set(DISTRIBUTED OFF)
set(OPS OFF)
build_and_run_consumer("-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}" -DHEED_KERNELS=OFF)

file(GLOB kernels "${WORK_DIR}/consumer/heed/CMakeFiles/heed_kernels_*")
if(kernels)
  message(FATAL_ERROR "Kernels were compiled: ${kernels}")
endif()
