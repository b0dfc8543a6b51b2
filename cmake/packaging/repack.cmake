# SPDX-License-Identifier: BSD-3-Clause
# cpack runs this after packing; it packs again what cpack packed.
#
# cpack adds scripts that call ldconfig to a .deb with shared libraries, which Debian's policy forbids: a trigger does
# it where a library lies in a public folder. And if SOURCE_DATE_EPOCH is set, packages of the same files are the same
# bit for bit: all files have that time, and stand in the order of their names.

set(date "$ENV{SOURCE_DATE_EPOCH}")
set(unpacked "${CPACK_TOPLEVEL_DIRECTORY}/unpacked")

function(set_times)
  if(date)
    execute_process(COMMAND find "${unpacked}" -exec touch --no-dereference "--date=@${date}" {} +
      COMMAND_ERROR_IS_FATAL ANY)
  endif()
endfunction()

function(repack_deb package)
  find_program(dpkg_deb dpkg-deb REQUIRED)
  execute_process(COMMAND "${dpkg_deb}" --raw-extract "${package}" "${unpacked}" COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE "${unpacked}/DEBIAN/postinst" "${unpacked}/DEBIAN/postrm")
  set(sums "${unpacked}/DEBIAN/md5sums")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C sort --key 2 --output "${sums}" "${sums}"
    COMMAND_ERROR_IS_FATAL ANY)
  set_times()
  execute_process(COMMAND "${dpkg_deb}" --root-owner-group --build "${unpacked}" "${package}"
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(repack_archive package)
  execute_process(COMMAND tar --extract --file "${package}" --directory "${unpacked}" COMMAND_ERROR_IS_FATAL ANY)
  set_times()
  execute_process(
    COMMAND tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "${unpacked}"
      "${CPACK_PACKAGE_FILE_NAME}"
    COMMAND gzip -9 -n
    OUTPUT_FILE "${package}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(package IN LISTS CPACK_PACKAGE_FILES)
  file(REMOVE_RECURSE "${unpacked}")
  file(MAKE_DIRECTORY "${unpacked}")
  if(CPACK_GENERATOR STREQUAL DEB)
    repack_deb("${package}")
  elseif(date)
    repack_archive("${package}")
  endif()
endforeach()
