# SPDX-License-Identifier: BSD-3-Clause
# heed::distributed, where LibTorch has c10d and the headers of Gloo are there.

get_target_property(torch_definitions torch_cpu INTERFACE_COMPILE_DEFINITIONS)
find_path(GLOO_INCLUDE_DIR gloo/config.h)
mark_as_advanced(GLOO_INCLUDE_DIR)
set(missing "")
if(NOT "USE_C10D_GLOO" IN_LIST torch_definitions)
  set(missing "this LibTorch was built without Gloo")
elseif(NOT GLOO_INCLUDE_DIR)
  set(missing "the headers of Gloo are missing (Debian: libgloo-dev)")
endif()
if(missing)
  message(STATUS "heed: heed::distributed is not built, because ${missing}")
  return()
endif()

add_library(heed_distributed
  src/distributed/addresses.cpp
  src/distributed/closed_group.cpp
  src/distributed/collectives.cpp
  src/distributed/data_parallel.cpp
  src/distributed/differentiable.cpp
  src/distributed/expert_exchange.cpp
  src/distributed/expert_parallel.cpp
  src/distributed/launch_environment.cpp
  src/distributed/mesh.cpp
  src/distributed/named_group.cpp
  src/distributed/parallel_linear.cpp
  src/distributed/parallelize.cpp
  src/distributed/parameter_shards.cpp
  src/distributed/process_group.cpp
  src/distributed/ring_attend.cpp
  src/distributed/sequence_call.cpp
  src/distributed/sequence_shards.cpp
  src/distributed/shard_sequence.cpp
  src/distributed/sharded_experts.cpp
  src/distributed/sharded_grad_scaler.cpp
  src/distributed/sharded_weights.cpp
  src/distributed/share_exchange.cpp
  src/distributed/share_sequence.cpp
  src/distributed/split_modules.cpp
  src/distributed/ulysses_attend.cpp
  src/distributed/vocab_parallel.cpp
  src/distributed/zero_redundancy_optimizer.cpp)
add_library(heed::distributed ALIAS heed_distributed)
heed_keep_exact_floats(heed_distributed)
heed_leave_out_paths(heed_distributed)
target_include_directories(heed_distributed PRIVATE src)
target_include_directories(heed_distributed SYSTEM PRIVATE "${GLOO_INCLUDE_DIR}")
target_link_libraries(heed_distributed
  PRIVATE ${before_torch} PUBLIC heed PRIVATE $<BUILD_INTERFACE:fmt::fmt-header-only>)
# libheed is installed beside it.
set(beside "$ORIGIN")
if(APPLE)
  set(beside "@loader_path")
endif()
set_target_properties(heed_distributed PROPERTIES
  EXPORT_NAME distributed
  INSTALL_RPATH "${beside}"
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  POSITION_INDEPENDENT_CODE ON
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(CMAKE_SYSTEM_NAME STREQUAL Linux)
  target_link_options(heed_distributed PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(heed_distributed PROPERTIES LINK_DEPENDS "${exports}")
endif()
find_path(NCCL_INCLUDE_DIR nccl.h)
mark_as_advanced(NCCL_INCLUDE_DIR)
if("USE_C10D_NCCL" IN_LIST torch_definitions AND NCCL_INCLUDE_DIR)
  target_compile_definitions(heed_distributed PRIVATE HEED_WITH_NCCL)
  target_include_directories(heed_distributed SYSTEM PRIVATE "${NCCL_INCLUDE_DIR}")
endif()
