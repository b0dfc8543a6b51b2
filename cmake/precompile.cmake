# SPDX-License-Identifier: BSD-3-Clause
# heed_precompile(<target>...)
# Programs that use heed: most of their compile time goes into LibTorch's headers, which are read once
# for all of them. CMAKE_DISABLE_PRECOMPILE_HEADERS turns this off.
#
# heed's own headers stay out: where only a comment of theirs changed, ccache gives a fresh build folder
# the precompiled header from before, and `#pragma once`, which compares files, lets them in twice.
function(heed_precompile)
  set(for_ccache $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  if(NOT TARGET heed_precompiled)
    set(source "${PROJECT_BINARY_DIR}/precompiled.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "")
    add_library(heed_precompiled OBJECT "${source}")
    target_link_libraries(heed_precompiled PRIVATE heed::heed)
    target_precompile_headers(heed_precompiled PRIVATE
      <ATen/core/Tensor.h> <torch/nn/cloneable.h> <torch/nn/modules/container/any.h>
      <torch/nn/modules/container/modulelist.h> <torch/nn/modules/embedding.h>
      <torch/nn/modules/linear.h> <torch/nn/modules/normalization.h> <torch/nn/pimpl.h>)
    target_compile_options(heed_precompiled PRIVATE ${for_ccache})
  endif()
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM heed_precompiled)
    target_compile_options(${target} PRIVATE ${for_ccache})
  endforeach()
endfunction()
