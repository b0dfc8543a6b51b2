# cpack runs this after packing. It adds scripts that call ldconfig to a .deb with shared libraries, which Debian's
# policy forbids: a trigger does it where a library lies in a public folder.
if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()
find_program(dpkg_deb dpkg-deb REQUIRED)
set(unpacked "${CPACK_TOPLEVEL_DIRECTORY}/unpacked")
foreach(package IN LISTS CPACK_PACKAGE_FILES)
  file(REMOVE_RECURSE "${unpacked}")
  execute_process(COMMAND "${dpkg_deb}" --raw-extract "${package}" "${unpacked}" COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE "${unpacked}/DEBIAN/postinst" "${unpacked}/DEBIAN/postrm")
  execute_process(COMMAND "${dpkg_deb}" --root-owner-group --build "${unpacked}" "${package}"
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
