# cpack runs this between installing the components and packing them. For a .deb it adds what Debian's policy asks of
# every package: the copyright file, which takes the place of LICENSE and NOTICE, and the changelog.
if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()

# indented(<variable> <file>): the file's text as a paragraph of a copyright file.
function(indented variable file)
  file(READ "${file}" text)
  string(STRIP "${text}" text)
  string(REPLACE "\n\n" "\n.\n" text "${text}")
  string(REPLACE "\n" "\n " text "${text}")
  set(${variable} " ${text}" PARENT_SCOPE)
endfunction()
indented(license "${CPACK_RESOURCE_FILE_LICENSE}")
indented(notice "${CPACK_HEED_NOTICE}")

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH, if that is set
find_program(gzip gzip REQUIRED)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER "${component}" upper)
  set(package "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
  set(root "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr")
  file(REMOVE_RECURSE "${root}/share/doc/heed")
  set(docs "${root}/share/doc/${package}")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/copyright.in" "${docs}/copyright" @ONLY)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/changelog.in" "${docs}/changelog" @ONLY)
  execute_process(COMMAND "${gzip}" -9 -n "${docs}/changelog" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
