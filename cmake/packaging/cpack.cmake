# SPDX-License-Identifier: BSD-3-Clause
# What `cpack --config <build folder>/CPackConfig.cmake` makes of what is installed: docs/packaging.md.

set(CPACK_PACKAGE_VENDOR "the heed authors")
if(NOT CPACK_PACKAGE_CONTACT)
  set(CPACK_PACKAGE_CONTACT "the heed authors <heed@heed.invalid>")  # a .deb needs an address
endif()
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
# The same heed for two LibTorches is two packages.
set(CPACK_PACKAGE_FILE_NAME
  "heed-${PROJECT_VERSION}-libtorch${Torch_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_GENERATOR TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_POST_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/repack.cmake")
set(CPACK_VERBATIM_VARIABLES ON)

find_program(HEED_DPKG_QUERY dpkg-query)
mark_as_advanced(HEED_DPKG_QUERY)
if(HEED_DPKG_QUERY)
  list(APPEND CPACK_GENERATOR DEB)
  include("${CMAKE_CURRENT_LIST_DIR}/debian/packages.cmake")
endif()
include(CPack)
