# SPDX-License-Identifier: BSD-3-Clause
# heed::ops: heed's operators in LibTorch's dispatcher, for Python and for exported programs.

add_library(heed_ops SHARED
  src/ops/attend_call.cpp
  src/ops/attend_ops.cpp
  src/ops/attend_paged_ops.cpp
  src/ops/attend_varlen_ops.cpp
  src/ops/attend_with_weights_ops.cpp
  src/ops/autocast.cpp
  src/ops/layer_ops.cpp
  src/ops/linear_cross_entropy_ops.cpp
  src/ops/traced.cpp)
add_library(heed::ops ALIAS heed_ops)
heed_keep_exact_floats(heed_ops)
heed_leave_out_paths(heed_ops)
target_link_libraries(heed_ops
  PRIVATE ${before_torch} $<BUILD_INTERFACE:heed_internals> $<BUILD_INTERFACE:fmt::fmt-header-only>
  PUBLIC torch)
set_target_properties(heed_ops PROPERTIES
  EXPORT_NAME ops
  LINKER_LANGUAGE CXX
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON)
if(CMAKE_SYSTEM_NAME STREQUAL Linux)
  # A program calls nothing in it, so that a linker would leave it out.
  target_link_options(heed_ops INTERFACE "LINKER:--no-as-needed")
  # It has a copy of heed's code, which must not stand in for that of a program.
  set(no_exports "${CMAKE_CURRENT_LIST_DIR}/no_exports.map")
  target_link_options(heed_ops PRIVATE "LINKER:--version-script=${no_exports}")
  set_target_properties(heed_ops PROPERTIES LINK_DEPENDS "${no_exports}")
endif()
