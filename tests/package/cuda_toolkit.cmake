# SPDX-License-Identifier: BSD-3-Clause
# A LibTorch that is built for CUDA, beside a part of the CUDA toolkit, which LibTorch alone refuses:
# find_package(heed) and add_subdirectory work.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
set(libtorch "${WORK_DIR}/libtorch/share/cmake/Torch")
file(WRITE "${libtorch}/TorchConfigVersion.cmake" "include(\"${TORCH_DIR}/TorchConfigVersion.cmake\")\n")
# What a CUDA build's config does more than that of a CPU build.
file(WRITE "${libtorch}/TorchConfig.cmake" "
  set(CAFFE2_USE_CUDA 1)
  include(\"${TORCH_CUDA}\")
  if(NOT CAFFE2_USE_CUDA)
    message(FATAL_ERROR \"LibTorch uses CUDA, but the CUDA libraries are missing.\")
  endif()
  set(Caffe2_DIR \"${TORCH_DIR}/../Caffe2\")  # CMake would take that of a LibTorch of the system
  include(\"${TORCH_DIR}/TorchConfig.cmake\")
  set_property(TARGET torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES torch::cudart)\n")
find_in("${INSTALLED}" "${WORK_DIR}/libtorch")

set(toolkit "${WORK_DIR}/toolkit")
file(WRITE "${toolkit}/bin/nvcc" "#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
file(CHMOD "${toolkit}/bin/nvcc" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(ENV{PATH} "${toolkit}/bin:$ENV{PATH}")
unset(ENV{CUDAToolkit_ROOT})

# configure_consumer(<part> <argument>...): in a new folder, since CMake keeps what it found.
function(configure_consumer part)
  step("Configuring the consumer beside ${part}" ${CMAKE_COMMAND}
    -S "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/consumer" -B "${WORK_DIR}/${part}" ${same_toolchain} ${ARGN})
endfunction()

configure_consumer(nvcc)
configure_consumer(nvcc_of_parent "-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}")

file(WRITE "${toolkit}/include/cuda_runtime.h" "")
file(WRITE "${toolkit}/empty.cpp" "")
file(MAKE_DIRECTORY "${toolkit}/lib64")
step("Building a libcudart" "${COMPILER}" -shared "${toolkit}/empty.cpp"
  -o "${toolkit}/lib64/libcudart${SUFFIX}")
configure_consumer(runtime_of_parent "-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}")
build_and_run_consumer(-DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
file(READ "${WORK_DIR}/consumer/compile_commands.json" commands)
string(FIND "${commands}" "${toolkit}/include" position)
if(position EQUAL -1)
  message(FATAL_ERROR "The consumer is compiled without the toolkit's headers.")
endif()
