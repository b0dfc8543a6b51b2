# SPDX-License-Identifier: BSD-3-Clause
include(CMakePackageConfigHelpers)

# Before anything is installed, because a package that lacks a library would still claim to have it.
set(build "'cmake --build ${CMAKE_BINARY_DIR} --target heed_libraries'")
foreach(library IN ITEMS heed heed_distributed heed_ops)
  if(TARGET ${library})
    install(CODE "if(NOT EXISTS \"$<TARGET_FILE:${library}>\")
      message(FATAL_ERROR \"${library} is not built: run ${build} first, then install.\")
    endif()")
  endif()
endforeach()

# A .deb holds one component each, an archive and `cmake --install` hold all: the shared libraries that programs load
# (heed, distributed), what one builds with (development), and the operators for Python (ops).
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
set(heed_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/heed")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/heed"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# install_library(<target> <export>)
function(install_library target export)
  install(TARGETS ${target} EXPORT ${export}
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    COMPONENT ${target} NAMELINK_COMPONENT development
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(EXPORT ${export} NAMESPACE heed:: DESTINATION "${heed_config_dir}")
endfunction()
install_library(heed heed-targets)
if(TARGET heed_distributed)
  install_library(heed_distributed heed-distributed-targets)
endif()
if(TARGET heed_ops)
  # Programs load the operators by their path, so they lie in a folder of their own, with what Python imports.
  set(heed_ops_dir "${CMAKE_INSTALL_LIBDIR}/heed")
  install(TARGETS heed_ops EXPORT heed-ops-targets
    LIBRARY DESTINATION "${heed_ops_dir}" COMPONENT heed_ops
    ARCHIVE DESTINATION "${heed_ops_dir}"
    RUNTIME DESTINATION "${heed_ops_dir}" COMPONENT heed_ops)
  install(EXPORT heed-ops-targets NAMESPACE heed:: DESTINATION "${heed_config_dir}" COMPONENT heed_ops)
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/scripts/python/use_heed_attention.py"
    DESTINATION "${heed_ops_dir}" COMPONENT heed_ops)
  install(FILES
    "${PROJECT_SOURCE_DIR}/scripts/python/heed_ops.py"
    "${PROJECT_SOURCE_DIR}/scripts/python/heed_transformers.py"
    DESTINATION "${heed_ops_dir}" COMPONENT heed_ops)
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/heed-config.cmake.in" "${PROJECT_BINARY_DIR}/heed-config.cmake"
  INSTALL_DESTINATION "${heed_config_dir}" NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break what the one before promised, from then on only a major one: docs/stability.md.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/heed-config-version.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY ${compatibility})
install(FILES
  "${PROJECT_BINARY_DIR}/heed-config.cmake"
  "${PROJECT_BINARY_DIR}/heed-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/heed-without-cuda-toolkit.cmake"
  DESTINATION "${heed_config_dir}")
