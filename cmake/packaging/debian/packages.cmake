# The .debs, one for each component of cmake/install.cmake.

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/finish.cmake")
set(CPACK_HEED_NOTICE "${PROJECT_SOURCE_DIR}/NOTICE")
set(CPACK_DEBIAN_PACKAGE_VERSION "${PROJECT_VERSION}+libtorch${Torch_VERSION}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
get_filename_component(torch_libraries "${Torch_DIR}/../../../lib" ABSOLUTE)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${torch_libraries}")

# Where this LibTorch is a Debian package's, heed needs that package, as exactly as heed-config does.
set(libtorch_is "It is not Debian's: CMake finds it\nin CMAKE_PREFIX_PATH.")
set(needs_libtorch "")
execute_process(COMMAND "${HEED_DPKG_QUERY}" --search "${Torch_DIR}/TorchConfig.cmake"
  OUTPUT_VARIABLE owner ERROR_QUIET)
if(owner MATCHES "^([^:, ]+)[:,]")
  set(owner "${CMAKE_MATCH_1}")
  set(libtorch_is "${owner} has it.")
  string(REGEX MATCH "^([0-9]+\\.[0-9]+)\\.([0-9]+)" release "${Torch_VERSION}")
  math(EXPR next_patch "${CMAKE_MATCH_2} + 1")
  set(needs_libtorch "${owner} (>= ${release}), ${owner} (<< ${CMAKE_MATCH_1}.${next_patch}~)")
endif()

# heed_deb(<component> NAME <package> SECTION <section> TEXT <line> [DEPENDS <package>...])
function(heed_deb component)
  cmake_parse_arguments(arg "" "NAME;SECTION;TEXT" "DEPENDS" ${ARGN})
  string(TOUPPER "${component}" upper)
  list(REMOVE_ITEM arg_DEPENDS "")
  list(JOIN arg_DEPENDS ", " depends)
  foreach(field IN ITEMS NAME SECTION)
    set(CPACK_DEBIAN_${upper}_PACKAGE_${field} "${arg_${field}}" PARENT_SCOPE)
  endforeach()
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION
    "${arg_TEXT}\nIt was built with LibTorch ${Torch_VERSION}. ${libtorch_is}" PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
endfunction()

set(CPACK_COMPONENTS_ALL "")
set(same_version "(= ${CPACK_DEBIAN_PACKAGE_VERSION})")
set(shared_packages "")
if(BUILD_SHARED_LIBS)
  foreach(library IN ITEMS heed heed_distributed)
    if(NOT TARGET ${library})
      continue()
    endif()
    string(REPLACE "_" "-" name "lib${library}${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
    set(behind "")
    set(what "attention, transformer blocks and models")
    if(library STREQUAL heed_distributed)
      set(behind "${shared_packages}")
      set(what "attention and training over several processes")
    endif()
    heed_deb(${library} NAME ${name} SECTION libs
      TEXT "This package has what programs load: ${what}."
      DEPENDS "${behind}")
    list(APPEND shared_packages "${name} ${same_version}")
    string(TOUPPER "${library}" upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_LIST_DIR}/triggers")
    set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  endforeach()
endif()
heed_deb(development NAME libheed-dev SECTION libdevel
  TEXT "This package has the headers, the CMake package and the library to link."
  DEPENDS ${shared_packages} "${needs_libtorch}")
if(TARGET heed_ops)
  heed_deb(heed_ops NAME libheed-ops SECTION libs
    TEXT "This package has operators for Python's torch and for exported programs."
    DEPENDS "python3:any")
endif()
