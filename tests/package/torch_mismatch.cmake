# SPDX-License-Identifier: BSD-3-Clause
# The package stops with one sentence when heed was built with another LibTorch.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

set(prefix "${WORK_DIR}/prefix")
file(REMOVE_RECURSE "${WORK_DIR}")
file(COPY "${INSTALLED}/" DESTINATION "${prefix}")
file(GLOB_RECURSE config "${prefix}/heed-config.cmake")
file(READ "${config}" text)
string(REGEX REPLACE "(set\\(heed_torch_version )\"([^\"]+)\"" "\\1\"1.2.3\"" edited "${text}")
set(torch_version "${CMAKE_MATCH_2}")
if(edited STREQUAL text)
  message(FATAL_ERROR "${config} does not record LibTorch's version.")
endif()
file(WRITE "${config}" "${edited}")

find_in("${prefix}" "${TORCH_ROOT}")
configure_must_say(
  "heed was built with LibTorch 1.2.3, but this project finds LibTorch ${torch_version} in ${TORCH_DIR}."
  -S "${CMAKE_CURRENT_LIST_DIR}/consumer" -B "${WORK_DIR}/consumer" ${same_toolchain})
