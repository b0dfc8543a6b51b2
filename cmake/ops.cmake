# heed::ops: heed's operators in LibTorch's dispatcher, for Python and for exported programs.

add_library(heed_ops SHARED
  src/ops/attend_call.cpp
  src/ops/attend_ops.cpp
  src/ops/attend_varlen_ops.cpp
  src/ops/autocast.cpp
  src/ops/layer_ops.cpp
  src/ops/traced.cpp)
add_library(heed::ops ALIAS heed_ops)
target_link_libraries(heed_ops
  PRIVATE ${before_torch} $<BUILD_INTERFACE:heed_internals> $<BUILD_INTERFACE:fmt::fmt-header-only>)
# A program calls nothing in it: the linker would leave it out.
if(CMAKE_SYSTEM_NAME STREQUAL Linux)
  target_link_options(heed_ops INTERFACE "LINKER:--no-as-needed")
  target_link_options(heed_ops PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(heed_ops PROPERTIES LINK_DEPENDS "${exports}")
endif()
set_target_properties(heed_ops PROPERTIES
  EXPORT_NAME ops
  LINKER_LANGUAGE CXX
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON)
