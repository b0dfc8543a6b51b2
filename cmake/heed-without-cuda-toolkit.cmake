# A LibTorch built for CUDA demands the CUDA toolkit when CMake finds it, though only projects that
# compile CUDA code need one. Its config does not look for the toolkit if torch::cudart is there.
if(TARGET torch::cudart OR CMAKE_CUDA_COMPILER)
  return()
endif()
# heed alone compiles no CUDA code; a project that uses heed may, where it has a toolkit.
if(NOT heed_top_level)
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart)
    return()
  endif()
endif()
add_library(torch::cudart INTERFACE IMPORTED)
