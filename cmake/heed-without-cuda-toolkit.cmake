# SPDX-License-Identifier: BSD-3-Clause
# A LibTorch built for CUDA stops if CMake does not find the whole CUDA toolkit, though only CUDA code
# needs one. Its config does not look for the toolkit if torch::cudart is there. A project that compiles
# CUDA code has enabled that language, or found LibTorch itself.
if(TARGET torch::cudart OR CMAKE_CUDA_COMPILER)
  return()
endif()
add_library(torch::cudart INTERFACE IMPORTED)
# heed includes no header of CUDA; C++ code of a project that uses heed may, where a toolkit has them.
if(NOT heed_top_level)
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart)
    target_link_libraries(torch::cudart INTERFACE CUDA::cudart)
  endif()
endif()
