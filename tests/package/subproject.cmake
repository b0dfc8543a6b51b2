# Uses heed's sources through add_subdirectory.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

build_and_run_consumer("-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}" "-DCMAKE_PREFIX_PATH=${TORCH_ROOT}")

file(STRINGS "${WORK_DIR}/consumer/CMakeCache.txt" built REGEX "^HEED_BUILD_.*=ON")
if(built)
  message(FATAL_ERROR "As a subproject heed also builds ${built}.")
endif()
