# SPDX-License-Identifier: BSD-3-Clause
# The scripts stop with one sentence when a tool is missing or LibTorch is too old.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

# script_must_say(<sentence> <variable>=<value>...): quickstart.sh stops with it.
function(script_must_say sentence)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARGN} "${HEED_SOURCE_DIR}/scripts/quickstart.sh"
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 1 OR NOT output STREQUAL "heed: ${sentence}\n")
    message("${output}")
    message(FATAL_ERROR "quickstart.sh ended with ${status} instead of 1 and: ${sentence}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(config_dir "${WORK_DIR}/libtorch/share/cmake/Torch")
file(WRITE "${config_dir}/TorchConfig.cmake" "")
file(WRITE "${config_dir}/TorchConfigVersion.cmake" "set(PACKAGE_VERSION \"2.5.1\")\n")
set(too_old "LibTorch 2.5.1 in ${config_dir} is too old; heed needs 2.6 or newer.")
script_must_say("${too_old}" "CMAKE_PREFIX_PATH=/nowhere:${WORK_DIR}/libtorch")
script_must_say("${too_old}" "Torch_DIR=${config_dir}")

# A PATH of what every Debian has, to which tools are added one by one.
set(tools "${WORK_DIR}/tools")
file(MAKE_DIRECTORY "${tools}")
function(add_tool name)
  find_program(tool ${name} NO_CACHE REQUIRED)
  file(CREATE_LINK "${tool}" "${tools}/${name}" SYMBOLIC)
endfunction()
foreach(name IN ITEMS bash dirname env head realpath sed sort)
  add_tool(${name})
endforeach()
script_must_say("CMake is missing (Debian: cmake)." "PATH=${tools}")
file(WRITE "${tools}/cmake" "#!/usr/bin/env bash\necho cmake version 3.18.4\n")
file(CHMOD "${tools}/cmake" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
script_must_say("CMake 3.18.4 is too old; heed needs 3.22 or newer." "PATH=${tools}")
file(REMOVE "${tools}/cmake")
add_tool(cmake)
script_must_say("A C++ compiler is missing (Debian: g++)." --unset=CXX "PATH=${tools}")
file(CREATE_LINK "${COMPILER}" "${tools}/c++" SYMBOLIC)
script_must_say("Python is missing (Debian: python3)." --unset=CXX "PATH=${tools}")
