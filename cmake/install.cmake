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

set(heed_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/heed")
install(TARGETS heed EXPORT heed-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/heed"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(EXPORT heed-targets NAMESPACE heed:: DESTINATION "${heed_config_dir}")
foreach(component IN ITEMS distributed ops)
  if(TARGET heed_${component})
    install(TARGETS heed_${component} EXPORT heed-${component}-targets
      ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
      LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
      RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    install(EXPORT heed-${component}-targets NAMESPACE heed:: DESTINATION "${heed_config_dir}")
  endif()
endforeach()
if(TARGET heed_ops)
  # What Python imports lies beside the library that it loads.
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/scripts/python/use_heed_attention.py"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(FILES
    "${PROJECT_SOURCE_DIR}/scripts/python/heed_ops.py"
    "${PROJECT_SOURCE_DIR}/scripts/python/heed_transformers.py"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/heed-config.cmake.in" "${PROJECT_BINARY_DIR}/heed-config.cmake"
  INSTALL_DESTINATION "${heed_config_dir}" NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break what the one before promised.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/heed-config-version.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/heed-config.cmake"
  "${PROJECT_BINARY_DIR}/heed-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/heed-without-cuda-toolkit.cmake"
  DESTINATION "${heed_config_dir}")
