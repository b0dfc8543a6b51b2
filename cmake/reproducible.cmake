# SPDX-License-Identifier: BSD-3-Clause
# The same sources give the same libraries, bit for bit, whatever the folders of heed, of its build and of what it is
# compiled with are called: docs/packaging.md.

# Sets heed_path_maps to flags under which the compiler writes a folder's name in place of its path.
set(heed_path_maps "")
macro(heed_map_path folder name)
  # Systems' own folders are the same everywhere. The compiler's flag ends a path at the first "=".
  if(IS_ABSOLUTE "${folder}" AND NOT "${folder}" MATCHES "^/usr(/|$)|=")
    file(REAL_PATH "${folder}" real_folder)  # GCC writes this of a header's if it is shorter
    list(APPEND heed_path_maps "-ffile-prefix-map=${real_folder}=${name}" "-ffile-prefix-map=${folder}=${name}")
    list(REMOVE_DUPLICATES heed_path_maps)
  endif()
endmacro()
# A sanitizer's reports name whole paths.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  # The last one that fits is taken, and a folder may lie in one before it.
  heed_map_path("${PROJECT_SOURCE_DIR}" .)
  heed_map_path("${PROJECT_BINARY_DIR}" ./build)
  heed_map_path("${TORCH_INSTALL_PREFIX}" libtorch)
  foreach(library IN ITEMS fmt::fmt-header-only nlohmann_json::nlohmann_json)
    get_target_property(folders ${library} INTERFACE_INCLUDE_DIRECTORIES)
    foreach(folder IN LISTS folders)
      string(REGEX REPLACE "::.*" "" name "${library}")
      heed_map_path("${folder}" ${name})
    endforeach()
  endforeach()
endif()

# Archives without times and owners.
if(CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> qcD <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> qD <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_RANLIB> -D <TARGET>")
endif()

# heed_leave_out_paths(<target>...)
# Shared libraries find LibTorch as installed ones do: what links to heed links to LibTorch as well, and has its path.
function(heed_leave_out_paths)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE ${heed_path_maps})
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  endforeach()
endfunction()
