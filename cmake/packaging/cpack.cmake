# What `cpack --config <build folder>/CPackConfig.cmake` makes of what is installed: docs/packaging.md.

set(CPACK_PACKAGE_VENDOR "the heed authors")
if(NOT CPACK_PACKAGE_CONTACT)
  set(CPACK_PACKAGE_CONTACT "the heed authors")
endif()
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
# The same heed for two LibTorches is two packages.
set(CPACK_PACKAGE_FILE_NAME
  "heed-${PROJECT_VERSION}-libtorch${Torch_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_GENERATOR TGZ)
set(CPACK_VERBATIM_VARIABLES ON)

find_program(HEED_DPKG_QUERY dpkg-query)
mark_as_advanced(HEED_DPKG_QUERY)
if(HEED_DPKG_QUERY)
  list(APPEND CPACK_GENERATOR DEB)
  set(CPACK_DEBIAN_PACKAGE_NAME libheed-dev)
  set(CPACK_DEBIAN_PACKAGE_VERSION "${PROJECT_VERSION}+libtorch${Torch_VERSION}")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ${BUILD_SHARED_LIBS})
  # Where this LibTorch is a Debian package's, heed needs that package, as exactly as heed-config does.
  set(libtorch_is "is not Debian's: CMake\nfinds it in CMAKE_PREFIX_PATH")
  execute_process(COMMAND "${HEED_DPKG_QUERY}" --search "${Torch_DIR}/TorchConfig.cmake"
    OUTPUT_VARIABLE owner ERROR_QUIET)
  if(owner MATCHES "^([^:, ]+)[:,]")
    set(owner "${CMAKE_MATCH_1}")
    set(libtorch_is "${owner} has")
    string(REGEX MATCH "^([0-9]+\\.[0-9]+)\\.([0-9]+)" release "${Torch_VERSION}")
    math(EXPR next_patch "${CMAKE_MATCH_2} + 1")
    set(CPACK_DEBIAN_PACKAGE_DEPENDS
      "${owner} (>= ${release}), ${owner} (<< ${CMAKE_MATCH_1}.${next_patch}~)")
  endif()
  set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "The library, its headers and its CMake package, for LibTorch ${Torch_VERSION}, which ${libtorch_is}.")
endif()
include(CPack)
