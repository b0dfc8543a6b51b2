# SPDX-License-Identifier: BSD-3-Clause
# heed that is built and packed in two places, with LibTorch in two places, is the same bit for bit. Of heed there are
# few sources; scripts/check_packages.sh --twice does it with all.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

file(REMOVE_RECURSE "${WORK_DIR}")
set(torch "${TORCH_ROOT}")
if(NOT TORCH_ROOT STREQUAL "/usr")
  set(torch "${WORK_DIR}/libtorch")
  file(MAKE_DIRECTORY "${WORK_DIR}")
  file(CREATE_LINK "${TORCH_ROOT}" "${torch}" SYMBOLIC)
endif()
set(ENV{CCACHE_DISABLE} 1)  # it would take the first build's objects for the second
set(ENV{SOURCE_DATE_EPOCH} 1600000000)

# build_and_pack(<folder> <build folder> <LibTorch>): a copy of heed there.
function(build_and_pack folder build torch)
  find_in("${torch}")
  foreach(name IN ITEMS CMakeLists.txt LICENSE NOTICE cmake include scripts src)
    file(COPY "${HEED_SOURCE_DIR}/${name}" DESTINATION "${folder}")
  endforeach()
  file(TOUCH "${folder}/include/heed/heed.h")
  step("Configuring in ${folder}" ${CMAKE_COMMAND} -S "${folder}" -B "${build}" ${same_toolchain}
    -DBUILD_SHARED_LIBS=OFF -DHEED_BUILD_DISTRIBUTED=OFF -DHEED_BUILD_TESTS=OFF -DHEED_BUILD_EXAMPLES=OFF
    -DHEED_BUILD_BENCHMARKS=OFF
    "-DCMAKE_PROJECT_heed_INCLUDE=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/few_sources.cmake")
  step("Building there" ${CMAKE_COMMAND} --build "${build}" --config "${CONFIG}" --target heed_libraries)
  step("Packing there" ${CPACK} --config "${build}/CPackConfig.cmake" -C "${CONFIG}" -B "${build}/packages")
endfunction()

build_and_pack("${WORK_DIR}/one" "${WORK_DIR}/one/build" "${TORCH_ROOT}")
build_and_pack("${WORK_DIR}/another longer path" "${WORK_DIR}/a build" "${torch}")

file(GLOB_RECURSE files RELATIVE "${WORK_DIR}/one/build"
  "${WORK_DIR}/one/build/libheed*.a" "${WORK_DIR}/one/build/libheed*.so"
  "${WORK_DIR}/one/build/packages/*.deb" "${WORK_DIR}/one/build/packages/*.tar.gz")
list(FILTER files EXCLUDE REGEX "_CPack_Packages")
list(LENGTH files count)
if(count LESS 3)
  message(FATAL_ERROR "Only ${files} were built.")
endif()
foreach(file IN LISTS files)
  step("Comparing ${file}" cmp "${WORK_DIR}/one/build/${file}" "${WORK_DIR}/a build/${file}")
endforeach()
